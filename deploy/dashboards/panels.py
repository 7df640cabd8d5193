"""Grafana's JSON, in few words: panels with a unit and a sentence each, laid out from left to
right.
"""

# What every query selects by; the variables of the same names fill it in.
S = 'job=~"$job",model_name=~"$model",instance=~"$instance"'
RATE = "$__rate_interval"
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
QUANTILES = (0.5, 0.9, 0.99)


def rate(metric, by="", **labels):
    """Per second, summed over replicas; `by` keeps labels."""
    return f"sum{by_clause(by)} (rate({metric}{{{selector(labels)}}}[{RATE}]))"


def total(metric, by="", **labels):
    """The sum over replicas now."""
    return f"sum{by_clause(by)} ({metric}{{{selector(labels)}}})"


def quantile(q, histogram, by="", **labels):
    """A quantile of a histogram over the last interval."""
    keep = ", ".join(filter(None, ["le", by]))
    return f"histogram_quantile({q}, {rate(histogram + '_bucket', keep, **labels)})"


def mean(histogram, by="", **labels):
    """The mean of a histogram's samples over the last interval."""
    return f"{rate(histogram + '_sum', by, **labels)} / {rate(histogram + '_count', by, **labels)}"


def quantiles(histogram, **labels):
    """Queries of a quantile panel."""
    return [(quantile(q, histogram, **labels), f"p{q * 100:g}") for q in QUANTILES]


def selector(labels):
    return ",".join([S, *(f'{name}="{value}"' for name, value in labels.items())])


def by_clause(by):
    return f" by ({by})" if by else ""


def series(title, says, unit, *queries, width=8, stack=False, most=None, least=0):
    """Lines over time. Queries are (expression, legend)."""
    custom = {"fillOpacity": 30 if stack else 8, "showPoints": "never", "lineWidth": 1}
    custom["stacking"] = {"mode": "normal" if stack else "none"}
    defaults = {"unit": unit, "custom": custom}
    if least is not None:
        defaults["min"] = least
    if most is not None:
        defaults["max"] = most
    options = {
        "legend": {"displayMode": "list", "placement": "bottom"},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    return panel(
        "timeseries",
        title,
        says,
        queries,
        width,
        8,
        {"defaults": defaults, "overrides": []},
        options,
    )


def stat(title, says, unit, query, width=4):
    """One number and its recent course."""
    options = {
        "reduceOptions": {"calcs": ["lastNotNull"]},
        "graphMode": "area",
        "colorMode": "value",
    }
    return panel(
        "stat",
        title,
        says,
        [(query, "")],
        width,
        4,
        {"defaults": {"unit": unit}, "overrides": []},
        options,
    )


def heatmap(title, says, unit, histogram, width=12):
    """How many samples fell into each bucket over time."""
    query = f"sum by (le) (increase({histogram}_bucket{{{S}}}[{RATE}]))"
    options = {
        "calculate": False,
        "yAxis": {"unit": unit},
        "color": {"mode": "scheme", "scheme": "Oranges", "steps": 64},
        "cellGap": 1,
    }
    made = panel(
        "heatmap",
        title,
        says,
        [(query, "{{le}}")],
        width,
        8,
        {"defaults": {"unit": unit}, "overrides": []},
        options,
    )
    made["targets"][0]["format"] = "heatmap"
    return made


def table(title, says, *columns, key, width=24, unit="short"):
    """A row for each value of the label `key`. Columns are (expression, heading, unit)."""
    made = panel(
        "table", title, says, [(query, heading) for query, heading, _ in columns], width, 8
    )
    for target in made["targets"]:
        target |= {"format": "table", "instant": True, "range": False}
    names = {f"Value #{chr(65 + i)}": heading for i, (_, heading, _) in enumerate(columns)}
    made["transformations"] = [
        {"id": "merge", "options": {}},
        {
            "id": "organize",
            "options": {"excludeByName": {"Time": True}, "renameByName": {key: key, **names}},
        },
    ]
    overrides = [
        {
            "matcher": {"id": "byName", "options": heading},
            "properties": [{"id": "unit", "value": one}],
        }
        for _, heading, one in columns
    ]
    made["fieldConfig"] = {"defaults": {"unit": unit}, "overrides": overrides}
    return made


def panel(kind, title, says, queries, width, height, fields=None, options=None):
    targets = [
        {"refId": chr(65 + i), "datasource": SOURCE, "expr": query, "legendFormat": legend}
        for i, (query, legend) in enumerate(queries)
    ]
    return {
        "type": kind,
        "title": title,
        "description": says,
        "datasource": SOURCE,
        "targets": targets,
        "gridPos": {"w": width, "h": height},
        "fieldConfig": fields or {},
        "options": options or {},
    }


def row(title):
    """A heading."""
    return {
        "type": "row",
        "title": title,
        "collapsed": False,
        "panels": [],
        "gridPos": {"w": 24, "h": 1},
    }


def board(uid, title, says, parts, variables=()):
    """A whole dashboard."""
    x = y = tallest = 0
    for number, part in enumerate(parts, 1):
        place = part["gridPos"]
        if x + place["w"] > 24:
            x, y = 0, y + tallest
            tallest = 0
        place |= {"x": x, "y": y}
        x += place["w"]
        tallest = max(tallest, place["h"])
        part["id"] = number
    known = [variable("job"), variable("model_name", "model"), variable("instance")]
    source = {
        "name": "datasource",
        "type": "datasource",
        "query": "prometheus",
        "label": "Prometheus",
        "hide": 0,
    }
    return {
        "uid": uid,
        "title": title,
        "description": says,
        "tags": ["ebb", "llm"],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "15s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [source, *known, *variables]},
        "links": [
            {
                "type": "dashboards",
                "tags": ["ebb"],
                "title": "Ebb",
                "asDropdown": False,
                "keepTime": True,
                "includeVars": True,
            }
        ],
        "panels": parts,
    }


def variable(label, name=None):
    query = f"label_values(vllm:num_requests_running, {label})"
    return {
        "name": name or label,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": "variable"},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def choice(name, label, values, chosen):
    """A variable with fixed values."""
    options = [{"text": value, "value": value, "selected": value == chosen} for value in values]
    current = {"text": chosen, "value": chosen}
    return {
        "name": name,
        "label": label,
        "type": "custom",
        "query": ",".join(values),
        "options": options,
        "current": current,
    }
