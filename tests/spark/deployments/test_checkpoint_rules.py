"""Tests what a change of a flow does to its checkpoint."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from penstock.spark.deployments.checkpoint_rules import compare, decide, former_flows
from penstock.spark.deployments.flow_fingerprints import (
    parse_fingerprint,
    project_flows,
    script_flows,
)
from penstock.spark.deployments.model import Version
from penstock.spark.pipelines.errors import PipelineError
from penstock.spark.pipelines.templates import TEMPLATES

TABLE = '''
from pyspark import pipelines as dp
from helpers import clean
TOPIC = "clicks"

@dp.table(comment="All clicks.")
def clicks():
    """Reads the stream of clicks."""
    # A comment.
    return clean(
        spark.readStream.format("penstock").option("subscribe", TOPIC)
        .option("kafka.bootstrap.servers", "a:1").load().where("page <> '/'")
    )
'''
HELPERS = """
def clean(frame):
    return frame.select("user", limits())

def limits():
    return "page"

def unrelated():
    return 1
"""
SESSIONS = """
@dp.table
def clicks():
    frame = spark.readStream.table("raw").withWatermark("at", "5 minutes")
    return frame.groupBy("user").count()
"""
JOIN = """
@dp.table
def clicks():
    users = spark.{reader}.table("users")
    return spark.readStream.table("raw").join(users, "id").where("id > 0")
"""


def prints(files: Mapping[str, str], home: str = "c.d") -> dict[str, str]:
    definitions = [path for path in files if path.startswith("flows/")]
    return project_flows(files, definitions, home)[0]


def outcome(before: Mapping[str, str], after: Mapping[str, str], flow: str = "clicks") -> str:
    found = {each.flow: each.outcome for each in compare(prints(before), prints(after))}
    return found[flow]


FILES = {"flows/clicks.py": TABLE, "helpers.py": HELPERS}


def changed(old: str, new: str, path: str = "flows/clicks.py") -> dict[str, str]:
    assert old in FILES[path]
    return {**FILES, path: FILES[path].replace(old, new)}


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (FILES, "unchanged"),
        (changed("# A comment.", "# Another one."), "unchanged"),
        (changed("Reads the stream of clicks.", "Reads a stream that was."), "unchanged"),
        (changed("All clicks.", "Clicks."), "unchanged"),
        (changed(".load().where", ".load()\n        .where"), "unchanged"),
        (changed("return 1", "return 2", "helpers.py"), "unchanged"),
        (changed("page <> '/'", "page <> '/x'"), "kept"),
        (changed("a:1", "b:1"), "kept"),
        (changed('return "page"', 'return "seconds"', "helpers.py"), "kept"),
        (changed('TOPIC = "clicks"', 'TOPIC = "views"'), "not kept"),
        (changed('"subscribe", TOPIC', '"subscribe", "views"'), "not kept"),
        (changed('"penstock"', '"kafka"'), "not kept"),
        (changed(".load()", '.load().dropDuplicates(["id"])'), "not kept"),
        (changed("def clicks", "def views"), "removed"),
    ],
)
def test_a_change_of_a_stateless_flow(after: dict[str, str], expected: str) -> None:
    assert outcome(FILES, after) == expected


@pytest.mark.parametrize(
    "added",
    [
        '.groupBy("user").count()',
        ".distinct()",
        '.dropDuplicates(["id"])',
        ".groupby('a').applyInPandasWithState(f, 's', 's', 'append', 't')",
        ".groupby('a').transformWithStateInPandas(f, 's', 'append', 't')",
        ".select(sf.window('at', '1 minute'))",
        ".limit(5)",
    ],
)
def test_a_change_of_a_stateful_flow_loses_its_checkpoint(added: str) -> None:
    before = changed(".load()", f".load(){added}")
    after = {**before, "helpers.py": HELPERS.replace('"page"', '"seconds"')}
    assert outcome(before, before) == "unchanged"
    assert outcome(before, after) == "not kept"


@pytest.mark.parametrize(("reader", "expected"), [("readStream", "not kept"), ("read", "kept")])
def test_a_join_keeps_state_if_both_sides_are_streams(reader: str, expected: str) -> None:
    text = JOIN.format(reader=reader)
    after = text.replace("id > 0", "id > 1")
    assert outcome({"flows/a.py": text}, {"flows/a.py": after}) == expected


def test_a_flow_whose_sources_are_unknown_loses_its_checkpoint() -> None:
    text = "@dp.table\ndef clicks():\n    return read_somehow(1)\n"
    after = text.replace("1", "2")
    assert outcome({"flows/a.py": text}, {"flows/a.py": text}) == "unchanged"
    assert outcome({"flows/a.py": text}, {"flows/a.py": after}) == "not kept"


def test_a_flow_depends_on_the_temporary_views_that_it_reads() -> None:
    text = (
        '@dp.table\ndef clicks():\n    return spark.readStream.table("v")\n'
        "@dp.temporary_view\ndef v():\n"
        '    return spark.readStream.format("rate").load().where("a")\n'
    )
    assert outcome({"flows/a.py": text}, {"flows/a.py": text.replace('"a"', '"b"')}) == "kept"
    stateful = text.replace('"a"', '"b"').replace(".load()", ".load().distinct()")
    assert outcome({"flows/a.py": text}, {"flows/a.py": stateful}) == "not kept"


def test_a_flow_into_a_sink() -> None:
    text = (
        'dp.create_sink("out", "penstock", {"topic": "a"})\n'
        '@dp.append_flow(target="out", name="clicks")\n'
        'def send():\n    return spark.readStream.table("t")\n'
    )
    files = {"flows/a.py": text}
    assert list(prints(files)) == ["clicks"]
    assert outcome(files, {"flows/a.py": text.replace('"topic": "a"', '"topic": "b"')}) == "kept"
    moved = {"flows/a.py": text.replace('target="out"', 'target="t2"')}
    assert outcome(files, moved) == "moved"
    with pytest.raises(PipelineError, match="use --reset clicks"):
        decide(compare(prints(files), prints(moved)), [], ["clicks"])


QUARANTINE = """
@dp.table(name="clicks")
@expect("known", "user <> ''", on_violation="drop")
@expect("long_enough", "seconds > 2", on_violation="quarantine"{more})
def read_clicks():
    return spark.readStream.format("penstock").option("subscribe", "clicks").load()
"""


@pytest.mark.parametrize(
    ("more", "quarantine"),
    [
        ("", "read_clicks_quarantine"),
        (', quarantine_table="short"', "short"),
        (', quarantine_topic="short"', "read_clicks_quarantine"),
        (", quarantine_topic=TOPIC", "read_clicks_quarantine"),
    ],
)
def test_quarantined_rows_have_a_flow_of_their_own(more: str, quarantine: str) -> None:
    """Its checkpoint depends on the same code, so a change can make both unusable."""
    files = {"flows/a.py": QUARANTINE.replace("{more}", more)}
    assert sorted(prints(files)) == sorted(["clicks", quarantine])
    stateful = {"flows/a.py": files["flows/a.py"].replace(".load()", ".load().distinct()")}
    assert outcome(files, stateful) == outcome(files, stateful, quarantine) == "not kept"


def test_a_quarantine_that_moves_to_a_topic_has_no_checkpoint_there() -> None:
    table = {"flows/a.py": QUARANTINE.replace("{more}", "")}
    topic = {"flows/a.py": QUARANTINE.replace("{more}", ', quarantine_topic="short"')}
    assert outcome(table, topic, "read_clicks_quarantine") == "moved"
    assert outcome(table, topic) == "kept"


def test_a_quarantine_that_is_added_to_a_running_flow_says_where_it_starts() -> None:
    """Not where the flow is: so rows can be in both places, or in neither."""
    code = QUARANTINE.replace("{more}", "")
    after = prints({"flows/a.py": code})
    before = prints({"flows/a.py": code.replace('"quarantine"', '"drop"')})
    assert [*before] == ["clicks"], "the name of the flow, and not of its function"
    (added,) = [each for each in compare(before, after) if each.outcome == "new"]
    assert added.flow == "read_clicks_quarantine"
    assert "startingOffsets of its source, and not where clicks is" in added.reason
    both = [each.reason for each in compare({}, after)]
    assert not any("startingOffsets" in reason for reason in both), "both start together"


def test_a_quarantine_with_a_computed_name_is_reported() -> None:
    text = QUARANTINE.replace("{more}", ", quarantine_table=NAME")
    assert project_flows({"flows/a.py": text}, ["flows/a.py"], "h")[1] == ["read_clicks"]


def test_another_database_is_another_place() -> None:
    (change,) = compare(prints(FILES), prints(FILES, "c.other"))
    assert change.outcome == "moved"


SQL = """
-- Counts.
CREATE MATERIALIZED VIEW counts AS SELECT page, count(*) FROM clicks GROUP BY page;
CREATE STREAMING TABLE clicks AS SELECT * FROM STREAM raw WHERE id > 0;
CREATE STREAMING TABLE target;
CREATE FLOW fill AS INSERT INTO target BY NAME SELECT * FROM STREAM(clicks);
CREATE TEMPORARY VIEW seen AS SELECT DISTINCT id FROM STREAM raw;
CREATE STREAMING TABLE once AS SELECT * FROM STREAM seen;
CREATE FLOW merged AS AUTO CDC INTO target FROM STREAM(clicks) KEYS (id) SEQUENCE BY at;
"""


@pytest.mark.parametrize(
    ("old", "new", "flow", "expected"),
    [
        ("-- Counts.", "-- Counts of pages.\n", "clicks", "unchanged"),
        ("id > 0", "id > 1", "clicks", "kept"),
        ("STREAM raw WHERE", "STREAM raw2 WHERE", "clicks", "not kept"),
        ("STREAM(clicks)", "STREAM(views)", "fill", "not kept"),
        ("INTO target", "INTO other", "fill", "moved"),
        ("count(*)", "sum(a)", "counts", "recomputed"),
        ("DISTINCT id", "DISTINCT id, page", "once", "not kept"),
        ("DISTINCT id", "DISTINCT id, page", "fill", "unchanged"),
        ("KEYS (id)", "KEYS (page)", "merged", "not kept"),
        ("CDC INTO target", "CDC INTO other", "merged", "moved"),
    ],
)
def test_flows_in_sql(old: str, new: str, flow: str, expected: str) -> None:
    assert sorted(prints({"flows/a.sql": SQL})) == ["clicks", "counts", "fill", "merged", "once"]
    assert old in SQL
    after = {"flows/a.sql": SQL.replace(old, new)}
    assert outcome({"flows/a.sql": SQL}, after, flow) == expected


def test_files_that_do_not_parse_and_files_that_define_nothing_are_left_out() -> None:
    assert prints({"flows/a.py": "def (", "flows/b.sql": "garbage", "other.py": TABLE}) == {}


def test_a_flow_whose_name_is_computed_is_reported() -> None:
    text = "for each in 'ab':\n    @dp.table(name=f'clicks_{each}')\n    def made(): ...\n"
    assert project_flows({"flows/a.py": text}, ["flows/a.py"], "c.d") == ({}, ["made"])


def test_the_queries_of_a_script() -> None:
    text = (
        'query = spark.readStream.format("penstock").option("subscribe", "a").load()'
        '.where("id > 0").writeStream.queryName("copy").start()\n'
    )
    before = script_flows({"job.py": text}, "job.py")
    assert list(before) == ["copy"]
    after = script_flows({"job.py": text.replace("id > 0", "id > 1")}, "job.py")
    assert compare(before, after)[0].outcome == "kept"
    after = script_flows({"job.py": text.replace('"a"', '"b"')}, "job.py")
    assert compare(before, after)[0].outcome == "not kept"


@pytest.mark.parametrize("template", sorted(TEMPLATES))
def test_the_flows_of_all_templates_are_found(template: str) -> None:
    files = dict(TEMPLATES[template].files)
    definitions = [each for each in files if each.startswith("transf")]
    found, unnamed = project_flows(files, definitions, "c.d")
    assert found
    assert unnamed == []
    for text in found.values():
        print_ = parse_fingerprint(text)
        assert print_ is not None
        assert str(print_) == text


def test_sessions_keep_state() -> None:
    (text,) = prints({"flows/a.py": SESSIONS}).values()
    found = parse_fingerprint(text)
    assert found is not None
    assert found.stateful


def test_a_deploy_without_a_decision_names_both_options() -> None:
    after = changed('TOPIC = "clicks"', 'TOPIC = "views"')
    changes = compare(prints(FILES), prints(after))
    with pytest.raises(PipelineError) as refused:
        decide(changes, [], [])
    assert "clicks (its sources changed)" in str(refused.value)
    assert "--reset clicks (it restarts without its checkpoint)" in str(refused.value)
    assert "--keep-checkpoint clicks (you know" in str(refused.value)
    assert decide(changes, ["clicks"], []).reset == ["clicks"]
    assert "restarts" in decide(changes, ["clicks"], []).texts()[0]
    kept = decide(changes, [], ["clicks"])
    assert kept.reset == []
    assert "as --keep-checkpoint asks" in kept.texts()[0]


def test_decisions_about_flows_that_do_not_exist() -> None:
    changes = compare(prints(FILES), prints(FILES))
    for reset, keep in ((["click"], []), ([], ["click"])):
        with pytest.raises(PipelineError, match="the flows are clicks"):
            decide(changes, reset, keep)
    with pytest.raises(PipelineError, match="use one, not both"):
        decide(changes, ["clicks"], ["clicks"])
    assert decide(changes, ["clicks"], []).reset == ["clicks"], "also if nothing changed"


def test_new_and_removed_flows_are_named() -> None:
    changes = compare({"old": "1:x"}, prints(FILES))
    decision = decide(changes, [], [])
    assert decision.texts() == [
        f"clicks: new; {changes[0].reason}",
        "old: removed; its checkpoint and its table are kept",
    ]
    assert changes[0].reason.startswith("it starts without a checkpoint, unless its storage has")


def version(number: int, flows: Mapping[str, str]) -> Version:
    return Version("views", number, "project", "x", "a" * 64, 1, flows=dict(flows))


def test_a_flow_that_an_earlier_version_had_goes_on_with_its_checkpoint() -> None:
    """Also one that a rollback brings back."""
    running = {"other": "1:x"}
    versions = [version(1, {"clicks": "1:x"}), version(3, prints(FILES)), version(4, running)]
    former = former_flows(versions, 4)
    assert former["clicks"].version == 3, "the last one that had it"
    (back, _) = compare(running, prints(FILES), former)
    assert back.outcome == "kept" and "version 3 had this flow" in back.reason
    (text,) = decide([back], [], []).texts()
    assert "keeps its checkpoint" in text and "starts without" not in text
    # It does not fit to a flow with other sources.
    (lost, _) = compare(running, prints(changed('TOPIC = "clicks"', 'TOPIC = "views"')), former)
    assert lost.outcome == "not kept" and lost.reason.endswith("but its sources changed")
    with pytest.raises(PipelineError, match="--reset clicks"):
        decide([lost], [], [])
    # One in another place is not found.
    (moved, _) = compare(running, prints(FILES, "c.other"), former)
    assert moved.outcome == "new" and "unless its storage has one" in moved.reason


def test_a_new_view_has_no_checkpoint() -> None:
    changes = compare({}, prints({"flows/a.sql": SQL}))
    reasons = {each.flow: each.reason for each in changes}
    assert reasons["counts"] == "it has no checkpoint: it is computed in every round"


def test_what_was_asked_for_earlier_is_in_the_plan() -> None:
    changes = compare(prints(FILES), prints(FILES))
    (text,) = decide(changes, [], [], ["clicks"]).texts()
    assert "restarts without its checkpoint, because of an earlier --reset" in text
    (text,) = decide(changes, [], ["clicks"], ["clicks"]).texts()
    assert "keeps its checkpoint" in text


def test_a_fingerprint_of_another_version_cannot_be_compared() -> None:
    (change,) = compare({"clicks": "9:later"}, prints(FILES))
    assert change.outcome == "not kept"
    assert parse_fingerprint("1:streaming:odd:a:b:c") is None
