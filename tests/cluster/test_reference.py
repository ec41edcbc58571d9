"""docs/config.md says what the schema says."""

from tests.cluster.config_reference import PAGE, tables, written


def test_the_page_has_every_field_as_the_schema_documents_it() -> None:
    page = PAGE.read_text()
    assert page == written(page), "rewrite it with python -m tests.cluster.config_reference"


def test_no_field_is_without_a_word() -> None:
    rows = [row for table in tables() for row in table.splitlines() if row.startswith("| `")]
    assert len(rows) > 50
    assert not [row for row in rows if row.endswith("|  |")]
