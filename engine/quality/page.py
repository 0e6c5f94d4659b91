"""The report as one HTML page that needs nothing else: a table, and bars and lines as inline SVG."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any

_WIDTH, _BAR_HEIGHT, _LABEL_WIDTH = 720, 20, 220
_COLORS = ("#2364aa", "#d1495b", "#3da35d", "#edae49", "#7a5195", "#5f6b6d", "#00798c", "#b5651d")
_COLUMNS = {
    "ppl": "PPL",
    "ppl_delta_ratio": "ΔPPL",
    "kl_mean": "mean KL",
    "kl_p999": "99.9 % KL",
    "kl_max": "max KL",
    "top1_agreement": "top-1",
    "rms_delta_p": "RMS Δp",
    "rouge_l": "ROUGE-L",
    "first_divergence_median": "first divergence",
    "margin_max": "widest margin",
}
_PERCENT = frozenset({"ppl_delta_ratio", "top1_agreement", "rms_delta_p", "rouge_l"})
_STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:76em;margin:2em auto;padding:0 1em;color:#222}
table{border-collapse:collapse}td,th{padding:.25em .7em;text-align:right;border-bottom:1px solid #ddd}
td:first-child,th:first-child{text-align:left}.bad{color:#b00020}svg{display:block;margin:.5em 0}
text{font:12px system-ui,sans-serif}"""


def render(report: Mapping[str, Any]) -> str:
    """Return the page of a report."""
    rows = {"noise floor": report["noise_floor"], **report["formats"]}
    title = f"KV cache quality: {report['model']}"
    parts = [
        f"<h1>{html.escape(title)}</h1>",
        f"<p>{report['num_tokens']:,} tokens in windows of {report['window']:,}, computed in {report['dtype']} with the "
        f"{report['backend']} kernels; unquantized PPL {report['unquantized']['ppl']:.3f}. "
        f"The noise floor is unquantized too, in other chunks. No human rated anything.</p>",
        _table(rows, report["gates"]),
        *(
            _bars(f"{_COLUMNS[key]} (log scale)", {n: r[key] for n, r in rows.items()})
            for key in ("kl_mean", "kl_p999")
        ),
    ]
    same_draws = {
        n: {k.removeprefix("same_draw_t"): v for k, v in r.items() if k[:9] == "same_draw"} for n, r in rows.items()
    }
    parts.append(_lines("Same random draw, same token, by temperature", same_draws))
    if "repeated_4grams" in report["noise_floor"]:
        repeated = {"unquantized": report["unquantized"], **rows}
        quarters = {n: {f"quarter {i + 1}": v for i, v in enumerate(r["repeated_4grams"])} for n, r in repeated.items()}
        parts.append(_lines("Repeated 4-grams, by quarter of the answer", quarters))
    if "needles" in report["noise_floor"]:
        found = {n: r["needles"] for n, r in {"unquantized": report["unquantized"], **rows}.items()}
        parts.append(_lines("Needles found, by depth", found))
    outliers = {f"layer {i}": max(heads) for i, heads in enumerate(report["key_outliers"])}
    parts.append(_bars("Key outliers: absmax of a token by the rms of a typical channel (log scale)", outliers))
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>'
    return f"{head}<style>{_STYLE}</style><body>{''.join(parts)}</body></html>\n"


def _table(rows: Mapping[str, Mapping[str, Any]], gates: Mapping[str, Sequence[str]]) -> str:
    shown = {key: label for key, label in _COLUMNS.items() if any(key in row for row in rows.values())}
    lines = ["<tr><th>format</th>", *(f"<th>{label}</th>" for label in shown.values()), "<th>gates</th></tr>"]
    for name, row in rows.items():
        lines.append(f"<tr><td>{html.escape(name)}</td>")
        lines += [f"<td>{_number(key, row.get(key))}</td>" for key in shown]
        breaches = gates.get(name)
        verdict = "" if breaches is None else html.escape("; ".join(breaches)) or "passed"
        lines.append(f'<td class="{"bad" if breaches else ""}">{verdict}</td></tr>')
    return f"<table>{''.join(lines)}</table>"


def _number(key: str, value: float | None) -> str:
    if value is None:
        return "–"
    return f"{100 * value:.2f} %" if key in _PERCENT else f"{value:.4g}"


def _bars(title: str, values: Mapping[str, float]) -> str:
    """Horizontal bars, on a logarithmic scale of whole decades."""
    logs = {name: math.log10(max(value, 1e-9)) for name, value in values.items()}
    low, high = math.floor(min(logs.values())), math.ceil(max(logs.values()))
    room = _WIDTH - _LABEL_WIDTH - 80
    parts = []
    for index, (name, value) in enumerate(values.items()):
        y, length = index * _BAR_HEIGHT, room * (logs[name] - low) / max(high - low, 1)
        parts.append(
            f'<text x="{_LABEL_WIDTH - 6}" y="{y + 14}" text-anchor="end">{html.escape(name)}</text>'
            f'<rect x="{_LABEL_WIDTH}" y="{y + 3}" width="{max(length, 1):.1f}" height="14" fill="{_COLORS[0]}"/>'
            f'<text x="{_LABEL_WIDTH + max(length, 1) + 6:.1f}" y="{y + 14}">{value:.3g}</text>'
        )
    return _figure(title, parts, len(values) * _BAR_HEIGHT)


def _lines(title: str, series: Mapping[str, Mapping[str, float]]) -> str:
    """A line a row over the same named points, from the smallest value to 1."""
    points = list(next(iter(series.values())))
    low = min(0.999, *(value for line in series.values() for value in line.values()))
    height, left, right = 220, 50, _WIDTH - 180
    parts = [f'<text x="0" y="12">1</text><text x="0" y="{height}">{low:.2f}</text>']
    step = (right - left) / max(len(points) - 1, 1)
    for index, point in enumerate(points):
        parts.append(f'<text x="{left + index * step:.0f}" y="{height + 18}">{html.escape(point)}</text>')
    for index, (name, line) in enumerate(series.items()):
        color = _COLORS[index % len(_COLORS)]
        ys = [height - (height - 10) * (line[point] - low) / (1 - low) for point in points]
        path = " ".join(f"{left + i * step:.1f},{y:.1f}" for i, y in enumerate(ys))
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>'
            f'<text x="{right + 12}" y="{14 + 16 * index}" fill="{color}">{html.escape(name)}</text>'
        )
    return _figure(title, parts, max(height + 24, 16 * len(series)))


def _figure(title: str, parts: Sequence[str], height: int) -> str:
    return f'<h2>{html.escape(title)}</h2><svg width="{_WIDTH}" height="{height}" role="img">{"".join(parts)}</svg>'
