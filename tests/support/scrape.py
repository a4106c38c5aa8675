"""What a Prometheus sees: one scrape, parsed by its own client library."""

import urllib.request

from prometheus_client.parser import text_string_to_metric_families

Labels = tuple[tuple[str, str], ...]


class Scrape:
    """Samples by name and labels."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.types: dict[str, str] = {}
        self.samples: dict[tuple[str, Labels], float] = {}
        for family in text_string_to_metric_families(text):
            self.types[family.name] = family.type
            for sample in family.samples:
                name = (sample.name, tuple(sorted(sample.labels.items())))
                assert name not in self.samples
                self.samples[name] = sample.value

    def value(self, name: str, **labels: str) -> float:
        """One sample; 0 if there is none."""
        return self.samples.get(("pagewire_" + name, tuple(sorted(labels.items()))), 0.0)

    def total(self, name: str) -> float:
        """All samples of a name, whatever their labels."""
        return sum(value for (found, _), value in self.samples.items() if found == "pagewire_" + name)


def scrape(port: int) -> Scrape:
    """The metrics now."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        return Scrape(answer.read().decode())
