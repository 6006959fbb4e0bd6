"""The HTML report: every kind of record, hostile names, missing keys, charts, the layout, and the command."""

from __future__ import annotations

import copy
import html.parser
import json
import random
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest
import report_records as records
from click.testing import CliRunner

from anynpu.cli.report import report
from anynpu.errors import ConfigError, IntegrityError
from anynpu.records.build import ChipForm
from anynpu.records.compare import Ratio
from anynpu.records.load import load, published
from anynpu.report import facts, markdown, measurements
from anynpu.report.html import layout, page
from anynpu.report.html import render as page_of
from anynpu.report.html.axes import Scale, padded
from anynpu.report.html.graph import graph_data
from anynpu.report.html.grouped import draw_grouped
from anynpu.report.html.intervals import ratio_chart
from anynpu.report.html.latency import _bins, histogram, timeline
from anynpu.report.html.markup import data_block, el, text
from anynpu.report.html.stages import stages
from anynpu.schema import from_json
from anynpu.seals import sealed


def render(data):
    """Returns the page of a record that was read from JSON."""
    return page_of(load(data, "x"))


VOID = {"meta", "link", "input", "br", "hr", "img", "col"}


class Reader(html.parser.HTMLParser):
    """Reads a page: every element is closed in order, and what elements and attributes there are."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "script" not in self.open and "style" not in self.open:
            self.words.append(data)


@pytest.fixture(scope="module", params=list(records.EVERY))
def record(request):
    return records.EVERY[request.param]()


def test_every_kind_is_a_whole_page_that_names_nothing_outside(record):
    whole = render(record)
    read = Reader(whole)
    outside = [v for _, attributes in read.tags for k, v in attributes.items() if k in ("src", "href", "xlink:href")]
    assert all(v.startswith("#") or v == "data:," for v in outside)
    assert "@import" not in whole
    assert not re.search(r"url\((?!#|`?#)", whole.replace("url(#${id})", ""))
    assert len([tag for tag, _ in read.tags if tag == "h1"]) == 1
    assert len(whole) < 3_000_000


def test_the_policy_names_the_hash_of_the_style_and_the_script_that_are_in_the_page(record):
    import base64
    import hashlib

    whole = render(record)
    for tag in ("style", "script"):
        body = re.search(rf"<{tag}>(.*?)</{tag}>", whole, re.DOTALL)[1]
        wanted = base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()
        assert f"'sha256-{wanted}'" in page.policy()
    assert "default-src 'none'" in page.policy()
    assert "unsafe" not in page.policy()
    styled = [
        tag
        for tag, attributes in Reader(whole).tags
        if "style" in attributes or any(k.startswith("on") for k in attributes)
    ]
    assert styled == [], "the policy would block them"


def test_charts_have_a_sentence_and_no_number_that_is_none(record):
    read = Reader(render(record))
    pictures = [attributes for tag, attributes in read.tags if tag == "svg" and attributes.get("class") == "chart"]
    assert all(len(attributes["aria-label"]) > 10 and attributes["role"] == "img" for attributes in pictures)
    numbers = {"x", "y", "x1", "x2", "y1", "y2", "cx", "cy", "width", "height"}
    drawn = [
        v
        for tag, attributes in read.tags
        if tag in ("rect", "line", "circle", "text")
        for k, v in attributes.items()
        if k in numbers
    ]
    assert all(re.fullmatch(r"-?[\d.]+", v) for v in drawn)
    assert record["kind"] == "eval" or pictures


def wreck(value):
    """Puts a hostile text wherever a record holds one that is not part of its form."""
    if isinstance(value, dict):
        fixed = (
            ("kind", "status", "device", "schema_version")
            if "schema_version" in value or "inputs" in value
            else ("device",)
        )
        return {k: v if k in fixed else wreck(v) for k, v in value.items()}
    if isinstance(value, list):
        return [wreck(each) for each in value]
    return records.HOSTILE + value if isinstance(value, str) else value


def test_hostile_names_are_text_everywhere(record):
    whole = render(wreck(record))
    read = Reader(whole)
    assert not [tag for tag, _ in read.tags if tag == "img"]
    code = [
        attributes for tag, attributes in read.tags if tag == "script" and attributes.get("type") != "application/json"
    ]
    assert len(code) == 1
    assert "window.hacked" in "".join(read.words) or "window.hacked" in whole
    assert "<script>window.hacked" not in whole
    assert not [1 for _, attributes in read.tags if "onerror" in attributes]


def test_text_escapes_markup_quotes_zeros_and_lone_surrogates():
    assert text("<a b=\"'&\0\udc80") == "&lt;a b=&quot;&#x27;&amp;\\x00\\udc80"
    assert el("p", "<b>", el("b", "x"), title='"') == '<p title="&quot;">&lt;b&gt;<b>x</b></p>'
    assert el("rect", x=0, y=0.0, hidden=True, id=None, open=False) == '<rect x="0" y="0" hidden></rect>'
    block = data_block("d", {"x": "</script><!--&", "y": float("nan")})
    inside = block.removeprefix('<script type="application/json" id="d">').removesuffix("</script>")
    assert "<" not in inside
    assert json.loads(inside) == {"x": "</script><!--&", "y": None}


def without(value, seed):
    """Returns a copy without some of the keys that the schema does not require, and None for others."""
    rng = random.Random(seed)
    form = published(value["kind"])

    def strip(data, known):
        if isinstance(data, dict):
            inner = known.get("properties", {})
            kept = {}
            for key, item in data.items():
                sub = inner.get(key, known.get("additionalProperties") or {})
                needed = key in known.get("required", ()) or key == "kind"
                if not needed and key in inner and rng.random() < 0.3:
                    nullable = "null" in (sub.get("type") or ())
                    if nullable and rng.random() < 0.5:
                        kept[key] = None
                    continue
                kept[key] = strip(item, sub)
            return kept
        return [strip(each, known.get("items", {})) for each in data] if isinstance(data, list) else data

    return strip(value, form)


@pytest.mark.parametrize("seed", range(25))
def test_no_optional_key_is_needed(record, seed):
    small = copy.deepcopy(record)
    if small["kind"] == "build":
        small["chips"] = [
            records.chip("a", graph=records.deep_graph(9)),
            records.failed("b", findings=[{"message": "m", "where": "w"}]),
        ]
    Reader(render(without(small, seed)))


def test_the_verdict_comes_first_and_says_what_happened():
    chips = [
        records.chip("cpu"),
        records.chip("u55", "fallback", records.deep_graph(20)),
        records.failed("hxwe2", message="no space"),
    ]
    words = " ".join(Reader(render(records.build(chips))).words)
    assert words.index("1 of 3 chips ok; u55: fallback; hxwe2: ToolFailed") < words.index("SQNR")
    assert "no space" in words
    assert "estimate" in words
    assert "Scale of the inputs must be equal." in words


def test_a_lowered_gate_a_full_memory_and_a_missed_gate_are_not_green():
    lowered = records.chip("cpu", by_gate_only="the result is 4.2 dB SQNR from the float model; 10 dB is asked for")
    whole = render(records.build([lowered]))
    words = " ".join(Reader(whole).words)
    assert "cpu: ok by a lowered gate only" in words
    assert "by the default gate: the result is 4.2 dB" in words
    assert 'class="verdict warn"' in whole and 'class="pill good"' not in whole
    full = records.chip("mcu", memory={"sram_kib": 256, "flash_kib": 1024})
    assert 'class="pill good"' not in render(records.build([full]))
    missed = records.build(
        [{**records.failed("x", "AccuracyError", "too far"), "verification": lowered["verification"]}]
    )
    missed["request"]["gate"]["min_sqnr_db"] = 60.0
    whole = render(missed)
    assert 'class="figure bad"' in whole and "gate 60 dB" in whole
    assert 'class="pill good"' in render(records.build([records.chip("cpu")]))


def test_a_sweep_by_a_lowered_gate_and_a_worse_score_are_not_green():
    sweep = records.sweep()
    assert measurements.sweep_verdict(load(sweep, "x"))[1] == "good"
    sweep["gate"] = [{"name": "min_sqnr", "value": 5.0, "default": 30.0, "unit": "dB", "origin": "--min-sqnr"}]
    below = sum(row["sqnr_db"] < 30 for row in sweep["rows"])
    assert below > 0
    said, mood = measurements.sweep_verdict(load(sweep, "x"))
    assert f"{below} of them by a lowered gate only" in said and mood == "warn"
    worse = {**records.evaluation(), "against": {"path": "out/v1", "verdict": "worse"}}
    said, mood = measurements.eval_verdict(load(worse, "x"))
    assert said.endswith("worse than out/v1") and mood == "bad"


def test_the_card_of_a_chip_that_failed_says_what_to_type():
    hint = "try another -O method=..., `anynpu check -t u55`, --min-sqnr, or pip install 'anynpu[build]'"
    causes = [{"cause": "ranges", "tensor": "t1", "evidence": "wide", "repair": "equalise (-O equalize=true)"}]
    diagnosis = {"worst_output": "y", "sqnr_db": 3.0, "samples": 5, "healthy": False, "causes": causes}
    whole = render(records.build([{**records.failed("u55", hint=hint), "diagnosis": diagnosis}]))
    card = re.search("<article.*?</article>", whole, re.DOTALL)[0]
    commands = re.findall(r'<code data-copy="(.*?)" class="command">(.*?)</code>', card)
    assert all(copied == shown for copied, shown in commands)
    assert [html.unescape(shown) for _, shown in commands] == [
        "-O method=...",
        "anynpu check -t u55",
        "--min-sqnr",
        "pip install 'anynpu[build]'",
        "-O equalize=true",
    ]
    assert "equalise (" in card
    assert "To fix it" not in render(records.build([records.chip("cpu")]))


def test_a_build_of_nothing_and_a_graph_without_nodes():
    assert "0 of 0 chips ok" in render(records.build([]))
    Reader(render(records.build([records.chip("x", graph={"nodes": []})])))


def test_bench_shows_percentiles_intervals_and_circles_every_outlier():
    record = records.bench()
    whole = render(record)
    outliers = record["latency"]["summary"]["outliers"]
    assert outliers
    assert whole.count('class="spike"') == len(outliers)
    p99 = record["latency"]["summary"]["percentiles"]["p99"]
    words = Reader(whole).words
    assert facts.short(p99["value"]) in words
    assert measurements.interval(p99["low"], p99["high"]) in words


def test_a_bench_that_broke_off_or_has_only_stages_still_has_its_figures():
    broken = records.bench(complete=False, error={"kind": "DeviceError", "message": "gone"})
    assert "broke off (gone): median" in render(broken)
    old = {
        "schema_version": 1,
        "kind": "bench",
        "executed": "qemu",
        "unit": "instructions",
        "stages": {"inference": {"min": 5, "median": 6, "max": 9, "samples": [5, 6, 9]}},
    }
    whole = render(old)
    assert "median 6 instructions" in "".join(Reader(whole).words)
    assert "no samples" in render({"schema_version": 1, "kind": "bench"})


def test_the_histogram_counts_every_sample_and_survives_odd_ones():
    for samples in ([1.0], [2.0] * 50, [0.0, 1.0, 5.0], [1e-9, 1.0, 1e9], records.bench()["latency"]["samples"]):
        _, counts = _bins(samples, log=False)
        assert sum(counts) == len(samples)
        marks = {"p50": (samples[0], None, None), "p99": (samples[-1], samples[0], None)}
        ElementTree.fromstring(histogram(samples, "ms", marks))
        ElementTree.fromstring(timeline(samples, None, {0: "", 99999: ""}, "ms"))


def test_a_long_timeline_is_thinned_but_keeps_its_spikes():
    samples = [1.0] * 20000
    samples[13579] = 9.0
    drawn = timeline(samples, [i * 0.001 for i in range(20000)], {13579: "garbage collection"}, "ms")
    assert "2500 of 20000 points" in drawn or "2501 of 20000 points" in drawn
    assert drawn.count('class="spike"') == 1
    assert "at 13.58 s: garbage collection" in drawn
    assert len(drawn) < 80_000


def test_ratio_and_verdict_of_a_comparison():
    words = " ".join(Reader(render(records.compare())).words)
    assert "B is worse than A" in words
    assert "no difference" in measurements.compare_verdict(load(records.compare(1.0), "x"))[0]


@pytest.mark.parametrize("ratio", [(71.5, 51.4, 100.2), (0.01, 0.005, 0.02), (1.0, 1.0, 1.0), (1.02, None, None)])
def test_a_ratio_lies_on_its_side_of_one_and_no_axis_goes_below_zero(ratio):
    drawn = ratio_chart(Ratio(**dict(zip(("median", "low", "high"), ratio, strict=True))), "faster", "slower")
    svg = ElementTree.fromstring(drawn).find(".//svg")
    ticks = [float(text.text) for text in svg.iter("text") if text.get("class") == "tick mid"]
    assert ticks
    assert all(tick > 0 for tick in ticks)
    dot, one = float(svg.find("circle").get("cx")), float(svg.find("line[@class='limit']").get("x1"))
    assert (dot > one) == (ratio[0] > 1)
    assert (dot < one) == (ratio[0] < 1)
    assert ratio_chart(Ratio(median=0.0), "", "") == ratio_chart(Ratio(), "", "") == ""


def test_the_front_is_filled_and_joined():
    record = records.sweep()
    front = sum(row["on_front"] for row in record["rows"])
    assert 0 < front < len(record["rows"])
    whole = render(record)
    assert len(re.findall(r'class="dot front c\d" data-tip', whole)) == 3 * front
    assert len(re.findall(r'class="dot beaten c\d" data-tip', whole)) == 3 * (len(record["rows"]) - front)
    assert whole.count('class="frontier"') == 3
    assert "latency ESTIMATE in ms" in whole


def test_stages_are_whole_blocks_of_about_one_size_in_order():
    graph = from_json(ChipForm, records.chip("x", graph=records.deep_graph(200))).graph
    found = stages(graph)
    assert [stage.first for stage in found] == [0, *(stage.stop for stage in found[:-1])]
    assert found[-1].stop == 200
    assert 8 <= len(found) <= 20
    assert all(4 <= stage.stop - stage.first <= 26 for stage in found)
    assert all(stage.first % 4 == 0 for stage in found), "a residual block is not cut"
    assert found[0].name == f"block_0–{found[0].stop // 4 - 1}"
    assert found[0].shape.startswith("56 × 56 × ")
    assert len(stages(replace(graph, nodes=graph.nodes[:40]))) == 1
    assert stages(replace(graph, nodes=())) == []
    bare = [replace(node, name="", inputs=(), outputs=()) for node in graph.nodes]
    assert stages(replace(graph, nodes=tuple(bare)))[-1].stop == 200


def test_a_grouped_drawing_keeps_every_node_inside_its_card_and_cards_apart():
    rng = random.Random(3)
    edges = [(i, i + 1) for i in range(119)] + [(i, rng.randrange(i + 1, 120)) for i in range(0, 118, 5)]
    member = [i // 12 for i in range(120)]
    drawing = draw_grouped(member, sorted(set(edges)))
    wide, high = drawing.card
    for (x, y), stage in zip(drawing.nodes, member, strict=True):
        middle = drawing.cards[stage]
        assert abs(x - middle[0]) <= (wide - layout.WIDTH) / 2
        assert abs(y - middle[1]) <= (high - layout.HEIGHT) / 2 + layout.HEIGHT / 2
    for i, (x, y) in enumerate(drawing.cards):
        assert wide / 2 - 1 <= x <= drawing.width - wide / 2 + 1
        assert high / 2 - 1 <= y <= drawing.height - high / 2 + 1
        assert all(abs(x - a) >= wide or abs(y - b) >= high for a, b in drawing.cards[:i])
    assert set(drawing.edges) == set(edges)


def test_graph_data_names_each_tensor_once_and_draws_inputs_and_outputs():
    chip = from_json(ChipForm, records.chip("x", graph=records.deep_graph(12)))
    data = graph_data(chip, chip.graph)
    names = [t[0] for t in data.tensors]
    assert len(set(names)) == len(names)
    kinds = [n[1] for n in data.nodes]
    assert (kinds[0], kinds[-1]) == ("input", "output")
    weights = next(t for t in data.tensors if t[0] == "weights_0")
    assert weights[3] == [0.001, 0.02, 64]
    off = [n for n in data.nodes if n[2] == "cpu"]
    assert all(n[3] == "Scale of the inputs must be equal." for n in off)


def random_edges(count, seed):
    rng = random.Random(seed)
    return [(rng.randrange(i), i) for i in range(1, count) for _ in range(rng.choice((1, 1, 2, 3)))]


@pytest.mark.parametrize("count", [1, 2, 8, 60, 300])
def test_nodes_do_not_touch_and_edges_end_at_their_nodes(count):
    edges = random_edges(count, count)
    drawing = layout.draw(count, edges)
    for i, (x, y) in enumerate(drawing.nodes):
        assert layout.WIDTH / 2 - 0.01 <= x <= drawing.width - layout.WIDTH / 2 + 0.01
        for to_x, to_y in drawing.nodes[i + 1 :]:
            assert abs(x - to_x) >= layout.WIDTH or abs(y - to_y) >= layout.HEIGHT
    for (a, b), points in drawing.edges.items():
        assert points[0] == (drawing.nodes[a][0], drawing.nodes[a][1] + layout.HEIGHT / 2)
        assert points[-1] == (drawing.nodes[b][0], drawing.nodes[b][1] - layout.HEIGHT / 2)
    assert set(drawing.edges) == set(edges)


def test_a_chain_goes_down_is_folded_and_a_circle_ends():
    chain = layout.draw(100, [(i, i + 1) for i in range(99)])
    assert chain.columns > 3
    assert 0.6 < chain.width / chain.height < 3
    short = layout.draw(5, [(i, i + 1) for i in range(4)])
    assert [y for _, y in short.nodes] == sorted(y for _, y in short.nodes)
    circle = layout.draw(3, [(0, 1), (1, 2), (2, 0)])
    assert len(circle.edges) == 3
    assert layout.draw(0, []).nodes == ()


def test_crossings_are_fewer_after_ordering():
    """Four parallel branches that cross in the given order come out side by side."""
    edges = [(0, i) for i in range(1, 5)] + [(i, 9 - i) for i in range(1, 5)] + [(i, 9) for i in range(5, 9)]
    drawing = layout.draw(10, edges)
    upper = sorted(range(1, 5), key=lambda i: drawing.nodes[i][0])
    lower = sorted(range(5, 9), key=lambda i: drawing.nodes[i][0])
    assert [9 - i for i in upper] == lower


def test_scales_and_ticks():
    scale = Scale(0.1, 1000, 0, 400, log=True)
    assert scale(0.1) == 0
    assert scale(1000) == pytest.approx(400)
    assert {0.1, 1, 10, 100, 1000} <= {round(t, 9) for t in scale.ticks()}
    assert Scale(0, 1, 0, 1).ticks(5) == [0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert Scale(3, 3, 0, 10)(3) == 5
    low, high = padded([2.0, 2.0])
    assert low < 2 < high


def test_markdown_of_every_kind(record):
    told = markdown.render(load(record, "x"))
    assert told.startswith("# ")
    rows = [line for line in told.splitlines() if line.startswith("|")]
    assert rows
    wrecked = markdown.render(load(wreck(record), "x")) if record["kind"] != "build" else ""
    assert "<script>" not in wrecked


def run(*arguments):
    return CliRunner().invoke(report, [str(a) for a in arguments], catch_exceptions=True)


def test_the_command_writes_beside_the_record(record, tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(sealed(record)))
    for form, name in (("html", "mine.html"), ("markdown", "mine.md"), ("junit", "mine.junit.xml")):
        done = run(path, "--as", form)
        assert done.exit_code == 0, done.output
        assert done.output.strip() == str(tmp_path / name)
        assert (tmp_path / name).stat().st_size > 100
    assert run(path, "-o", "-").output.startswith("<!doctype html>")
    told = json.loads(run(path, "-f", "json", "-o", tmp_path / "deep" / "x.html").output)
    assert (told["kind"], told["of"]) == ("report", record["kind"])
    assert (tmp_path / "deep" / "x.html").exists()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[]", "not a record of anynpu"),
        ('{"kind": "cache"}', "kind 'cache'"),
        ('{"kind": ["build"]}', "not a record"),
        ("{", "not valid JSON"),
        ('{"kind": "build", "schema_version": 1}', "request: is missing"),
        ('{"kind": "bench", "schema_version": 1, "latency": {"samples": [1, NaN]}}', "NaN is not a number"),
        ('{"kind": "sweep", "schema_version": 1, "rows": 5}', "rows: array was expected"),
        ('{"kind": "bench", "schema_version": true}', "schema_version: integer"),
    ],
)
def test_what_is_no_record_is_refused_in_one_sentence(content, said, tmp_path):
    path = tmp_path / "x.json"
    path.write_text(content)
    done = run(path)
    # A file that is not JSON is damaged (status 8), as every other verb says.
    assert isinstance(done.exception, IntegrityError if content == "{" or "NaN" in content else ConfigError)
    assert re.search(said, done.exception.message), done.exception.message
    assert done.exception.hint
    assert isinstance(run(tmp_path / "none.json").exception, ConfigError)
    assert isinstance(run().exception, ConfigError)


def test_a_page_on_stdout_is_no_json(tmp_path):
    path = tmp_path / "x.json"
    path.write_text(json.dumps(records.bench()))
    assert "is not JSON" in run(path, "-f", "json", "-o", "-").exception.message
