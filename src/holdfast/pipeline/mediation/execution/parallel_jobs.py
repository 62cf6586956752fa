"""Parallel jobs of one batch.

A small job is mostly work of the driver: it plans, starts tasks, and renames files, one step after the other. So six
parallel jobs take little more time than one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

R = TypeVar("R")

MOST = 8
"""Maximum of parallel jobs."""


def side_by_side(spark: SparkSession, jobs: Sequence[Callable[[], R]]) -> list[R]:
    """Run jobs in threads with the caller's Spark properties: the query's id, the batch, the job group.

    Returns:
        Their results, in the order of ``jobs``.

    Raises:
        Exception: The error of the first job that failed, after all have ended.
    """
    from pyspark.util import InheritableThread

    if len(jobs) < 2:
        return [job() for job in jobs]
    waiting = list(enumerate(jobs))[::-1]
    results: dict[int, R] = {}
    errors: dict[int, BaseException] = {}

    def work() -> None:
        # Spark finds a format by the active session of its thread.
        type(spark)._get_j_spark_session_class(spark._jvm).setActiveSession(spark._jsparkSession)
        while waiting and not errors:
            try:
                number, job = waiting.pop()
            except IndexError:  # another thread has taken the last one
                return
            try:
                results[number] = job()
            except BaseException as error:
                errors[number] = error

    threads = [InheritableThread(target=work, session=spark) for _ in range(min(MOST, len(jobs)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[min(errors)]
    return [results[number] for number in range(len(jobs))]
