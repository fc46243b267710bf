"""Real captions of other projects read as a person reads them; counts were checked by eye."""

import csv
import json
import os
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import pytest

from pipeline.caption_cleaning import clean_captions
from pipeline.captions import main as captions_main
from pipeline.captions import summarize
from pipeline.formats.caption_sources import RawCaption, iterate_captions, read_caption_file
from pipeline.formats.captions import read_captions
from pipeline.formats.plan import read_planned_captions
from pipeline.plan import main as plan_main
from tests.examples import captions_settings

DATA = os.environ.get("BAGPIPE_REAL_DATA")
pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not DATA, reason="BAGPIPE_REAL_DATA names no folder of real data"),
]
REAL = Path(DATA or ".") / "captions"
NO_CAPTIONS = {"small_train_videos.csv", "hmdb51.csv", "msrvtt_test.csv"}
SUFFIXES = {".csv", ".vtt", ".srt", ".json", ".sjson"}


def clean(path, **settings):
    counts = Counter()
    unit = settings.pop("seconds_per_unit", 1)
    captions = clean_captions(
        read_caption_file(path, "v"), captions_settings(**settings), seconds_per_unit=unit,
        counts=counts,
    )  # fmt: skip
    return captions, dict(+counts)


def test_every_file_reads_and_adds_up_or_is_refused_by_name():
    paths = [path for path in sorted(REAL.rglob("*")) if path.suffix in SUFFIXES]
    assert len(paths) > 70
    for path in paths:
        if path.name in NO_CAPTIONS:
            with pytest.raises(ValueError, match="no column start and text"):
                clean(path)
            continue
        _, counts = clean(path)
        dropped = sum(n for reason, n in counts.items() if reason.startswith("dropped_"))
        assert counts.get("read", 0) == counts.get("kept", 0) + dropped, path


@pytest.mark.parametrize(
    ("name", "read", "kept"),
    [
        ("cdown_srt/gb2312.srt", 3, 3),
        ("edx_sjson/RQdyRhHDlRo.srt.sjson", 9, 9),
        ("edx_sjson/subs_cOAhhVoO6bo.srt.sjson", 80, 70),
        ("youtube_srt/--JPzgi_hlg.srt", 1, 1),
        ("youtube_srt/84qFCcgQnhI.en.srt", 12, 7),
        ("youtube_srt/d7p_Enj0aNE.en.srt", 2, 1),
        ("youtube_srt/v6JigEzNARc.en.srt", 1, 0),
        ("youtube_srt/--vP_LrXZwo.json", 65, 65),
        ("videogrep/manifesto.json", 31, 31),
        ("videogrep/emptyvideo.aa.vtt", 0, 0),
    ],
)
def test_counts(name, read, kept):
    _, counts = clean(REAL / name)
    assert (counts.get("read", 0), counts.get("kept", 0)) == (read, kept)


def test_rolling_webvtt_becomes_the_srt_of_the_same_video():
    """The same narration, once as it scrolled and once as its publisher wrote it down."""
    rolling, counts = clean(REAL / "videogrep/manifesto.vtt")
    plain, _ = clean(REAL / "videogrep/manifesto.srt")
    assert counts["mended_rolling"] == counts["dropped_rolling"] == 34
    assert [c.text for c in rolling] == [c.text for c in plain]
    assert [c.start_seconds for c in rolling] == [c.start_seconds for c in plain]
    assert all(
        abs(a.end_seconds - b.end_seconds) < 0.5 for a, b in zip(rolling, plain, strict=True)
    )


def test_rolling_howto100m_captions_say_each_phrase_once():
    captions, counts = clean(REAL / "howto100m_small/small_train_captions/-tCQ4tCQdWE.csv")
    assert [c.text for c in captions][:8] == [
        "check pic tonight pick", "bowl", "night honest cause got", "little pat plant",
        "raspberries sticking", "extras raspberry", "bush couple",
        "black comic book ask mum makes",
    ]  # fmt: skip
    assert counts == {"read": 20, "kept": 20, "mended_rolling": 18}


def test_captions_that_only_overlap_in_time_keep_every_word():
    path = REAL / "howto100m_small/small_train_captions/5VLwcVOLoFs.csv"
    captions, counts = clean(path)
    with open(path, newline="") as file:
        assert [c.text for c in captions] == [row["text"] for row in csv.DictReader(file)]
    assert counts == {"read": 64, "kept": 64}


def test_an_odd_srt_loses_its_wrapped_time_and_its_music_and_keeps_its_repeats():
    captions, counts = clean(REAL / "youtube_srt/84qFCcgQnhI.en.srt")
    assert [c.text for c in captions] == [
        "Heat.", "Heat. Heat.", "Heat.", "Heat. Heat.", "Heat.", "Heat.", "Heat. Heat."
    ]  # fmt: skip
    assert counts == {"read": 12, "kept": 7, "dropped_reversed": 1, "dropped_sound_tag": 4}


def test_encodings_of_other_worlds():
    chinese, _ = clean(REAL / "cdown_srt/gb2312.srt")
    assert chinese[0].text == "宇宙守护神 保护我们远离邪恶"
    serbian, _ = clean(REAL / "subtitleedit/auto_detect_windows-1251.srt")
    assert "Бесмртници." in [c.text for c in serbian]
    assert not any("<i>" in c.text or "\n" in c.text for c in serbian)


def test_milliseconds_and_entities_of_course_captions():
    captions, counts = clean(REAL / "edx_sjson/subs_AEwvgztBf44.srt.sjson", seconds_per_unit=0.001)
    assert (counts["read"], counts["kept"], counts["mended_entities"]) == (186, 169, 46)
    assert not any("&#39;" in c.text or "&quot;" in c.text for c in captions)
    assert captions[-1].end_seconds < 501


def test_captions_of_the_trial_are_kept_but_for_lone_tags_and_a_wrong_time():
    # The tags are a speaker's name, twice, and a sound; the time is "16.0,1.0" for 16-18.
    expected = {
        "hidden-elements": {"read": 14, "kept": 11, "dropped_sound_tag": 3},
        "gnome-task-switching": {"read": 13, "kept": 12, "dropped_reversed": 1},
    }
    for path in sorted((REAL.parent / "trial/captions").glob("*.csv")):
        _, counts = clean(path)
        everything = {"read": counts["read"], "kept": counts["read"]}
        assert counts == expected.get(path.stem, everything), path


def test_a_long_table_of_many_videos():
    rows = list(iterate_captions(REAL / "milnce_csv/validation_youcook.csv"))
    assert (len(rows), len({row.video_id for row in rows})) == (3350, 436)
    assert rows[0] == RawCaption("xHr8X2Wpmno", "47", "60", "pick the ends off the verdalago")


@pytest.mark.parametrize("form", ["folder", "table", "json"])
def test_plan_and_captions_of_howto100m_agree_over_all_forms(tmp_path, monkeypatch, form):
    """A folder of files, one table and one caption.json with the same rows give the same words."""
    monkeypatch.chdir(tmp_path)
    folder = REAL / "howto100m_small/small_train_captions"
    files = sorted(folder.glob("*.csv"))
    rows = {path.stem: list(csv.DictReader(path.read_text().splitlines())) for path in files}
    source = {"folder": folder, "table": Path("all.csv"), "json": Path("caption.json")}[form]
    if form == "table":
        with open(source, "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["video_id", "start", "end", "text"])
            writer.writerows([i, *row.values()] for i, own in rows.items() for row in own)
    elif form == "json":
        value = {
            i: {key: [row[key] if key == "text" else float(row[key]) for row in own]
                for key in ("start", "end", "text")}
            for i, own in rows.items()
        }  # fmt: skip
        source.write_text(json.dumps(value))
    lines = [f"{path.stem},{path}\n" for path in files]
    Path("videos.csv").write_text("video_id,path\n" + "".join(lines))
    settings = {"videos": "videos.csv", "captions": str(source), "videos_per_shard": 20}
    Path("plan.json").write_text(json.dumps(settings))
    settings = asdict(captions_settings())
    Path("captions.json").write_text(json.dumps(settings))
    plan_main(["--settings", "plan.json", "--output", "plan", "--parts", "parts", "--order", "o"])
    texts = []
    for shard in ("00000", "00001", "00002"):
        assert len(read_planned_captions(f"plan/{shard}.captions")) == (
            1 if form != "folder" else 10 if shard == "00002" else 20
        )
        captions_main(["--plan", f"plan/{shard}.captions", "--settings", "captions.json",
                       "--output", f"captions/{shard}.parquet"])  # fmt: skip
        texts += [caption.text for caption in read_captions(f"captions/{shard}.parquet")[0]]
    summary = summarize(Path("plan"), Path("captions"))
    assert summary.videos == 50
    expected = [caption.text for path in files for caption in clean(path)[0]]
    assert sorted(texts) == sorted(expected)
    assert summary.captions == len(texts) == summary.counts["kept"]
    assert summary.counts["read"] == sum(map(len, rows.values()))
