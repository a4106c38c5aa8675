"""A model card that comes while another is being read is read too, whatever became of the first."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pagewire.internal.v1 import front_pb2
from support.fake_scheduler import toy_card

from scheduler_svc.front import service_state
from scheduler_svc.front.service_state import ServiceState


def service_of(card: Any) -> Any:
    service = front_pb2.Service(num_workers=1, page_size=16, hash_key=b"k" * 32)
    service.model_card.CopyFrom(card)
    return service


async def test_a_good_card_that_comes_while_a_bad_one_is_read(monkeypatch: Any) -> None:
    started, go_on = threading.Event(), threading.Event()
    build = service_state.build_served_model

    def held(card: Any) -> Any:
        started.set()
        go_on.wait(20)
        return build(card)

    monkeypatch.setattr(service_state, "build_served_model", held)
    ready = asyncio.Event()
    with ThreadPoolExecutor(1) as executor:
        state = ServiceState(executor)
        state.listen(lambda serving, alive: ready.set() if serving else None)
        state.update(service_of(toy_card(tokenizer_json=b"{}")))
        await asyncio.to_thread(started.wait, 20)
        state.update(service_of(toy_card()))
        go_on.set()
        await asyncio.wait_for(ready.wait(), 20)
        assert state.model is not None
        await state.close()
