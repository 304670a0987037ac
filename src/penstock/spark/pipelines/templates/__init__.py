"""The projects that `penstock pipeline init --template` creates."""

from __future__ import annotations

from penstock.spark.pipelines.errors import PipelineError
from penstock.spark.pipelines.templates.alerts import ALERTS
from penstock.spark.pipelines.templates.change_data import CHANGE_DATA
from penstock.spark.pipelines.templates.clickstream import CLICKSTREAM
from penstock.spark.pipelines.templates.enrichment import ENRICHMENT
from penstock.spark.pipelines.templates.features import FEATURES
from penstock.spark.pipelines.templates.frame import ProjectTemplate
from penstock.spark.pipelines.templates.sessions import SESSIONS

TEMPLATES = {
    each.name: each for each in (CLICKSTREAM, CHANGE_DATA, SESSIONS, ENRICHMENT, ALERTS, FEATURES)
}


def find_template(name: str) -> ProjectTemplate:
    if name not in TEMPLATES:
        raise PipelineError(f"there is no template {name}: use one of {', '.join(TEMPLATES)}")
    return TEMPLATES[name]
