"""The limit of open files."""

import resource

from scheduler_svc.descriptors import allow_all


def test_the_usual_limit_is_not_ours() -> None:
    before = soft, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft // 2, most))
    try:
        allow_all()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (most, most)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
