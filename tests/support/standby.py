"""A real primary of PostgreSQL with a synchronous standby."""

from __future__ import annotations

from databases import PostgreSQL, program


class Primary(PostgreSQL):
    """A primary whose commits wait for the standby ``s1``."""

    needs = (*PostgreSQL.needs, "pg_basebackup")

    def make(self) -> None:
        super().make()
        data = self.directory / "data"
        with (data / "pg_hba.conf").open("a") as hba:
            hba.write("local replication all trust\n")

    def wait_for_standby(self) -> None:
        self.sql("ALTER SYSTEM SET synchronous_standby_names = 'FIRST 1 (s1)'", database="postgres")
        self.sql("SELECT pg_reload_conf()")
        asked = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"
        while self.sql(asked).strip() != "1":
            pass


class Standby(PostgreSQL):
    """A standby of a primary."""

    def __init__(self, primary: Primary) -> None:
        super().__init__()
        self.primary = primary

    def make(self) -> None:
        data = self.directory / "data"
        source = f"host={self.primary.directory} user=tester application_name=s1"
        self.run(
            program("pg_basebackup"), "-d", source, "-D", str(data), "-R", "-c", "fast", "-X", "stream", "--no-sync"
        )
        (data / "postgresql.auto.conf").write_text(f"primary_conninfo = '{source}'\n")

    def admit(self) -> None:
        pass

    def promote(self) -> None:
        assert self.sql("SELECT pg_promote()").strip() == "t"
