"""``python -m scheduler_svc``: the scheduler process and its fronts."""

import sys

from scheduler_svc import config, descriptors, log, process


def main() -> int:
    log.configure("text")
    try:
        settings = config.load(sys.argv[1:])
    except config.ConfigError as error:
        print(f"pagewire scheduler: {error}", file=sys.stderr)
        return 2
    log.configure(settings.log_format)
    descriptors.allow_all()
    return process.run(settings)


if __name__ == "__main__":
    sys.exit(main())
