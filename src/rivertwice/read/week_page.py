"""The report of a week as one HTML file: no script, no address, readable in mail programs, on paper and by a phone. Pure."""

from __future__ import annotations

from html import escape

from rivertwice.read.week import PipelineWeek, WeekReport

HEADS = (
    ("Windows compared", "windows"), ("Rows", "rows"), ("Agree", "agree"), ("Late", "late"), ("Wrong", "wrong"),
    ("Not comparable", "not_comparable"), ("Records lost", "lost"), ("Repairs", "repairs"), ("Savepoints proved", "proved"),
    ("Alerts", "incidents"),
)  # fmt: skip
COMPARED = frozenset({"windows", "rows", "agree", "late", "wrong", "not_comparable", "lost"})
"""What only a reconcile knows."""
BAD = frozenset({"wrong", "not_comparable", "lost"})
CSS = """
:root { color-scheme: light dark; --text: #1c2430; --soft: #5a6675; --line: #d9dfe7; --card: #f5f7fa; --bad: #b3261e; --good: #1a6b35; }
@media (prefers-color-scheme: dark) { :root { --text: #e6eaf0; --soft: #a3aebb; --line: #39424e; --card: #1d242d; --bad: #ff9a92; --good: #7fd89b; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--text); background: Canvas; max-width: 1180px; margin: 0 auto; padding: 24px 16px 48px; }
h1 { font-size: 1.6rem; margin: 0; } .soft { color: var(--soft); } .lead { font-size: 1.15rem; max-width: 70ch; }
dl { display: grid; grid-template-columns: repeat(5, 1fr); gap: 12px; margin: 24px 0; }
dl div { background: var(--card); border-radius: 8px; padding: 12px 14px; } dt { color: var(--soft); font-size: .875rem; }
dd { margin: 0; font-size: 1.5rem; font-weight: 650; font-variant-numeric: tabular-nums; }
table { border-collapse: collapse; width: 100%; font-size: .9375rem; } caption { text-align: left; font-weight: 650; padding: 8px 0; }
th, td { padding: 8px 10px; border-bottom: 1px solid var(--line); text-align: right; font-variant-numeric: tabular-nums; vertical-align: top; }
th:first-child, th.words, td.words { text-align: left; } thead th { color: var(--soft); font-weight: 600; } tbody th { font-weight: 650; overflow-wrap: anywhere; }
.bad { color: var(--bad); font-weight: 650; } .good { color: var(--good); }
@media (max-width: 700px) {
  thead { display: none; } table, caption, tbody, tr, th, td { display: block; } dl { grid-template-columns: 1fr 1fr; } tr { border-bottom: 1px solid var(--line); padding: 10px 0; }
  th, td { border: 0; padding: 2px 0; } td { display: flex; justify-content: space-between; gap: 16px; } td.words { text-align: right; }
  td::before { content: attr(data-label); color: var(--soft); text-align: left; }
}
"""


def page_of(report: WeekReport) -> str:
    """Return the file."""
    span = f"{report.since:%Y-%m-%d %H:%M} to {report.until:%Y-%m-%d %H:%M} UTC"
    figures = "".join(
        f"<div><dt>{head}</dt><dd{_tone(report.totals, name)}>{_number(report.totals, name)}</dd></div>"
        for head, name in HEADS
    )
    heads = "".join(f'<th scope="col">{head}</th>' for head in ("Pipeline", *(head for head, _ in HEADS)))
    rows = "".join(_row(each) for each in report.pipelines)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>rivertwice: the week to {report.until:%Y-%m-%d}</title><style>{CSS}</style></head><body><main>"
        f'<h1>The week of {len(report.pipelines)} pipelines</h1><p class="soft">{span}</p><p class="lead">{escape(report.sentence)}</p>'
        f"<dl>{figures}</dl><table><caption>Each pipeline, those first that need a look</caption><thead><tr>{heads}"
        '<th scope="col" class="words">SLO</th></tr></thead>'
        f'<tbody>{rows}</tbody></table><p class="soft">Rows are counted as the newest reconcile of the week says of all of them; windows, '
        "repairs, proofs and alerts are those of the week. Late: a record came after its window had closed. Wrong: a row is not what "
        "the log gives. Lost: a record without an explanation.</p></main></body></html>\n"
    )


def _row(week: PipelineWeek) -> str:
    unread = f"it cannot be read; rivertwice lint {week.name} says why" if week.unread else ""
    why = unread or ("" if week.reconciles else "no reconcile ended in this week")
    said = f'<div class="bad">{escape(why)}</div>' if why else ""
    cells = "".join(
        f'<td data-label="{head}"><span{_tone(week, name)}>{_number(week, name)}</span></td>' for head, name in HEADS
    )
    return f'<tr><th scope="row">{escape(week.name)}{said}</th>{cells}<td class="words" data-label="SLO">{_slo(week)}</td></tr>'


def _slo(week: PipelineWeek) -> str:
    budgets = [each for each in week.objectives.budgets if each.left is not None]
    if not budgets:
        return '<span class="soft">none</span>'
    worst, left = budgets[0], budgets[0].left or 0.0
    tone, words = ("good", f"{left:.0%} left") if left > 0 else ("bad", "budget used up")
    return f'<span class="{tone}" title="{escape(worst.text)}">{escape(worst.objective)}: {words}</span>'


def _number(week: PipelineWeek, name: str) -> str:
    is_known = not week.unread and (week.reconciles or name not in COMPARED)
    return f"{getattr(week, name):,}" if is_known else "&ndash;"


def _tone(week: PipelineWeek, name: str) -> str:
    return ' class="bad"' if name in BAD and getattr(week, name) else ""
