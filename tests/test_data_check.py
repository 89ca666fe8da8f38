"""From what was seen of a dataset to what is said about it: pure, on surveys without any file."""

from __future__ import annotations

import itertools
import random

import pytest
from data_sets import image, look, surveyed

from holdfast.diagnosis.dataset import classes, labels, leakage, readable, sizes
from holdfast.diagnosis.dataset.common import format_path, format_percent
from holdfast.diagnosis.dataset.groups import group_images
from holdfast.diagnosis.dataset.near_duplicates import (
    ALWAYS_NEAR,
    MAX_DISTANCE,
    distance,
    find_near_pairs,
    find_threshold,
)
from holdfast.diagnosis.dataset.splitting import propose_split
from holdfast.diagnosis.dataset.video_frames import find_videos, source_of
from holdfast.schema.images import LineNote

RULE = "the-check"


def severities(judged):
    return [finding.severity for finding in judged.findings]


# Readable


def test_images_that_are_all_fine_need_one_line():
    judged = readable.judge(surveyed(image("a.jpg"), image("b.jpg")), RULE)
    assert judged.message == "2 images (JPEG), all readable"
    assert not judged.findings


def test_a_damaged_image_is_named_with_its_reason_on_one_line():
    bad = image("b\nad.jpg", problem="truncated", detail="image file is truncated")
    judged = readable.judge(surveyed(*(image(f"{at}.jpg") for at in range(9)), bad), RULE)
    assert severities(judged) == ["warn"]
    assert judged.findings[0].evidence == ["truncated: 1: images/train/b\\nad.jpg (image file is truncated)"]


@pytest.mark.parametrize("split", ["train", "val"])
def test_half_of_a_split_damaged_is_no_ground_to_start_on(split):
    images = [image(f"{at}.jpg", split, problem="empty" if at % 2 else None) for at in range(10)]
    assert severities(readable.judge(surveyed(*images), RULE)) == ["fatal"]


def test_what_is_only_unusual_is_a_note():
    judged = readable.judge(surveyed(image("a.jpg", oddities=("tail",)), image("b.jpg")), RULE)
    assert severities(judged) == ["note"]
    assert "rewrites such files in place" in judged.findings[0].remedies[0]


def test_a_look_that_ended_early_says_so():
    assert "1 of 50 images (an even sample" in readable.judge(surveyed(image("a.jpg"), total=50), RULE).message


# Labels


@pytest.mark.parametrize(("split", "means"), [("train", "nothing to learn"), ("val", "every metric will be 0")])
def test_a_split_without_any_label_is_fatal(split, means):
    other = "val" if split == "train" else "train"
    found = labels.judge(
        surveyed(image("a.jpg", split, classes=(), label="missing"), image("b.jpg", other)), RULE
    ).findings
    assert [finding.severity for finding in found] == ["fatal"]
    assert means in found[0].message


def test_a_line_that_costs_its_image_is_quoted():
    bad = image(
        "a.jpg", faults={"class-range": 1}, notes=(LineNote("class-range", 7, "3 0.5 0.5 0.1 0.1"),), classes=(3,)
    )
    good = [image(f"{at}.jpg") for at in range(9)]
    (finding,) = labels.judge(surveyed(bad, *good), RULE).findings
    assert finding.severity == "warn"
    assert "images/train/a.jpg, line 7 of its labels: 3 0.5 0.5 0.1 0.1" in finding.evidence[0]
    assert "lists 1 class, 0 to 0, but the labels go up to 3" in finding.remedies[0]


def test_classes_that_are_counted_from_one_are_recognised():
    images = [image(f"{at}.jpg", classes=(1, 2), faults={"class-range": 1}) for at in range(4)]
    (finding,) = labels.judge(surveyed(*images, names=("cat", "dog")), RULE).findings
    assert finding.severity == "fatal"
    assert "counts from 0: subtract 1 from each" in finding.remedies[0]


def test_background_is_fine_and_lost_labels_are_not():
    def missing(count):
        return surveyed(*(image(f"{at}.jpg", label="missing" if at < count else "there") for at in range(20)))

    assert severities(labels.judge(missing(1), RULE)) == ["note"]
    assert severities(labels.judge(missing(8), RULE)) == ["warn"]


def test_labels_without_a_image_are_told():
    judged = labels.judge(surveyed(image("a.jpg"), stray_labels=2, stray_examples=("/data/labels/train/x.txt",)), RULE)
    assert "2 label files have no matching image" in judged.findings[0].message


# Classes


def test_a_class_that_only_validation_shows_holds_the_metric_down():
    seen = [image(f"{at}.jpg", classes=(0,) * 5) for at in range(10)]
    held = image("v.jpg", "val", classes=(0,) * 9 + (1,) * 9)
    (finding,) = classes.judge(surveyed(*seen, held, names=("cat", "dog")), RULE).findings
    assert finding.severity == "warn"
    assert "cannot exceed 0.50" in finding.message
    assert finding.evidence == ["dog: 0 in train, 9 in val"]


@pytest.mark.parametrize(("rare", "severity"), [(5, "warn"), (25, "warn"), (300, None)])
def test_classes_may_be_uneven_but_not_extremely(rare, severity):
    many = image("a.jpg", classes=(0,) * 3000 + (1,) * rare)
    held = image("v.jpg", "val", classes=(0,) * 9 + (1,) * 9)
    judged = classes.judge(surveyed(many, held, names=("cat", "dog")), RULE)
    assert severities(judged) == ([severity] if severity else [])


def test_a_class_on_a_image_that_is_left_out_is_not_shown():
    lost = image("a.jpg", classes=(1,) * 30, faults={"columns": 1})
    seen = image("b.jpg", classes=(0,) * 30)
    judged = classes.judge(surveyed(lost, seen, image("v.jpg", "val", classes=(0, 1) * 9), names=("cat", "dog")), RULE)
    assert "does not occur in training" in judged.findings[0].message


# Sizes


def test_objects_that_are_large_enough_need_one_line():
    judged = sizes.judge(surveyed(*(image(f"{at}.jpg", size=0.1) for at in range(20))), 640, RULE)
    assert judged.message == "20 objects at imgsz 640: median 64 px, 0% under 8 px, 0% under 16 px"
    assert not judged.findings


def test_the_image_size_that_makes_them_large_enough_is_named():
    """0.02 of the longer side has 12.8 px at 640 and 16 px at 800."""
    (finding,) = sizes.judge(surveyed(*(image(f"{at}.jpg", size=0.02) for at in range(20))), 640, RULE).findings
    assert finding.severity == "note"
    assert finding.remedies[0].startswith(
        "use imgsz=800: the median size of an object is then 16 px (about 1.6 times the memory"
    )


def test_the_class_that_suffers_most_is_named():
    images = [image(f"{at}.jpg", classes=(0, 0, 0, 1), sizes=(0.2, 0.2, 0.2, 0.01)) for at in range(12)]
    (finding,) = sizes.judge(surveyed(*images, names=("car", "bird")), 640, RULE).findings
    assert finding.severity == "warn"
    assert "100% of the objects of bird are under 16 pixels, and 100% are under 8" in finding.message
    assert "imgsz=1600" not in finding.remedies[0]
    assert "cut the images into tiles" in finding.remedies[0]


def test_tiles_are_as_large_as_they_may_be_and_cover_the_image():
    """Objects of 40 px in images of 8000 x 6000: at imgsz 640 they need tiles of 1600 px."""
    cut = sizes.tiles(40 / 8000, 640, 8000, 6000)
    assert cut == (1600, 6, 5)
    assert 40 * 640 / cut.side == sizes.CLEAR
    step = cut.side * (1 - sizes.OVERLAP)
    assert (cut.columns - 1) * step + cut.side >= 8000 > (cut.columns - 2) * step + cut.side
    assert (cut.rows - 1) * step + cut.side >= 6000 > (cut.rows - 2) * step + cut.side


# Alike


@pytest.mark.parametrize("within", [4, 10, 15, 20])
def test_near_pairs_are_those_that_comparing_all_with_all_finds(within):
    chance = random.Random(within)
    looks = [chance.getrandbits(128) for _ in range(150)]
    for look_ in looks[:100]:
        other = look_
        for bit in chance.sample(range(128), chance.randint(1, 26)):
            other ^= 1 << bit
        looks.append(other)
    every = {frozenset(pair) for pair in itertools.combinations(looks, 2) if distance(*pair) <= within}
    assert len(every) > 10
    assert {frozenset(pair) for pair in find_near_pairs(looks, within)} == every


def test_what_is_near_depends_on_how_alike_all_images_are():
    """Images that share most of their bits anyway must be nearer to be called copies."""
    chance = random.Random(1)
    unlike = [chance.getrandbits(128) for _ in range(500)]
    sky = chance.getrandbits(128)
    streets = [sky ^ (chance.getrandbits(128) & chance.getrandbits(128) & chance.getrandbits(128)) for _ in range(500)]
    assert find_threshold(unlike) == MAX_DISTANCE
    assert ALWAYS_NEAR <= find_threshold(streets) < 10


# Frames


def names_of(found, images):
    return sorted(sorted(images[at].path.rpartition("/")[2] for at in video.frames) for video in found)


def test_videos_are_found_in_names_that_say_so():
    names = [f"video_{video}_frame_{frame:04}.jpg" for video in (1, 2, 3) for frame in (1, 5, 9)]
    images = [image(name) for name in names]
    assert names_of(find_videos(images, "/data"), images) == [names[0:3], names[3:6], names[6:9]]


def test_many_videos_of_few_frames_are_videos_too():
    """The number that has the most values is not that of the frame."""
    images = [image(f"video_{video}_frame_{frame}.jpg") for video in range(30) for frame in range(3)]
    found = find_videos(images, "/data")
    assert {len(video.frames) for video in found} == {3}
    assert found[4].name == "video_4_frame_*"


def test_a_folder_for_each_video_is_as_good():
    images = [image(f"clip{video}/{frame:05}.jpg") for video in (1, 2) for frame in range(6)]
    assert [len(video.frames) for video in find_videos(images, "/data")] == [6, 6]


@pytest.mark.parametrize(
    "form", ["IMG_{:04}.jpg", "{:012}.jpg", "frame_{:05}.jpg", "2024-05-{:02}.jpg", "frame_{:03}_aug2.jpg"]
)
def test_numbers_alone_make_no_video(form):
    """Neighbours that look no more alike than any two are just numbered."""
    assert find_videos([image(form.format(at)) for at in range(30)], "/data") == []


def test_numbered_images_that_look_alike_are_scenes():
    """Taken in one go, with three changes of place."""
    images = [
        image(f"IMG_{at:04}.jpg", image_hash=f"{int(look(f'place {at // 10}'), 16) ^ (1 << at) ^ (1 << 2 * at):032x}")
        for at in range(40)
    ]
    assert [len(video.frames) for video in find_videos(images, "/data")] == [10, 10, 10, 10]


def test_splits_that_were_numbered_anew_say_nothing():
    images = [image(f"video_{at % 3}_frame_{at:04}.jpg", split) for split in ("train", "val") for at in range(12)]
    assert find_videos(images, "/data") == []


def test_copies_that_an_export_made_are_known_by_name():
    assert source_of("/d/cat_12_jpg.rf.0a1b2c.jpg") == source_of("/d/cat_12_jpg.rf.ffff00.jpg") == "cat_12"
    assert source_of("/d/cat_12.jpg") is None


# Leaks


def film(split_of, videos=6, frames=20):
    """Frames under names that say so; each with an object of the class of its video."""
    return [
        image(f"video_{video}_frame_{frame:04}.jpg", split_of(video, frame), classes=(video % 2,))
        for video in range(videos)
        for frame in range(frames)
    ]


def test_frames_dealt_out_at_random_are_a_leak_and_a_split_by_video_is_proposed():
    chance = random.Random(3)
    survey = surveyed(*film(lambda _video, _frame: "val" if chance.random() < 0.2 else "train"), names=("cat", "dog"))
    judged, split = leakage.judge(survey, RULE)
    (finding,) = judged.findings
    assert finding.severity == "warn"
    assert finding.message.startswith("100% of validation")
    assert "6 videos have frames in both train and val" in " ".join(finding.evidence)
    sides = [{path.split("_")[1] for path in side} for side in (split.train, split.val)]
    assert not sides[0] & sides[1]
    assert len(split.train) + len(split.val) == 120
    assert 0.1 <= len(split.val) / 120 <= 0.35


def test_videos_that_are_apart_are_no_leak():
    survey = surveyed(*film(lambda video, _frame: "val" if video == 5 else "train"))
    judged, split = leakage.judge(survey, RULE)
    assert judged.message.endswith("0 of 20 in val (0%) have a duplicate or a neighbouring frame in train")
    assert not judged.findings
    assert split is None


def test_the_frame_that_gives_it_away_is_the_nearest():
    survey = surveyed(*film(lambda _video, frame: "val" if frame == 10 else "train", videos=2))
    twin = group_images(survey).twins[0]
    assert survey.images[twin.trained].path.endswith("frame_0009.jpg")


def unrelated(count=400):
    return [image(f"photo{at}x.jpg", "val" if at % 5 == 0 else "train") for at in range(count)]


def test_images_that_have_nothing_to_do_with_each_other_are_apart():
    judged, split = leakage.judge(surveyed(*unrelated()), RULE)
    assert not judged.findings
    assert split is None


@pytest.mark.parametrize(
    ("held", "how"),
    [
        ({"digest": "train/photo1x.jpg"}, "the same file is in train"),
        ({"seed": "photo1x.jpg"}, "a near copy is in train"),
        ({"seed": "photo1x.jpg", "flipped": 12}, "a near copy is in train"),
    ],
)
def test_a_twin_is_told_with_its_example(held, how):
    twin = image("other.jpg", "val", **held)
    if "digest" in held:
        twin = image("other.jpg", "val", seed="photo1x.jpg", **held)
    (finding,) = leakage.judge(surveyed(*unrelated(), twin), RULE)[0].findings
    assert finding.severity == "note"
    assert finding.evidence[0] == f"1 in val: {how}, e.g. images/val/other.jpg and images/train/photo1x.jpg"


def test_validating_on_the_training_images_is_a_leak():
    survey = surveyed(*(image(f"p{at}q.jpg", split, digest=str(at)) for split in ("train", "val") for at in range(50)))
    (finding,) = leakage.judge(survey, RULE)[0].findings[:1]
    assert (finding.severity, finding.confidence) == ("warn", "proven")
    assert "100% of validation (50 of 50 images)" in finding.message


def test_copies_with_other_labels_contradict_each_other():
    images = [
        image("a.jpg", digest="x", classes=(0,)),
        image("b.jpg", digest="x", classes=(0, 0)),
        image("v.jpg", "val"),
    ]
    (finding,) = leakage.judge(surveyed(*images), RULE)[0].findings
    assert finding.message == "1 image occurs twice, with different labels."


# Splits


def split_of(survey):
    return propose_split(survey, group_images(survey))


def test_a_split_is_the_same_whatever_the_order_of_the_images():
    images = film(lambda _video, frame: "val" if frame % 5 == 0 else "train", videos=9)
    first = split_of(surveyed(*images))
    random.Random(1).shuffle(images)
    assert split_of(surveyed(*images)) == first


def test_a_split_keeps_the_share_of_each_class():
    """A rare class that is in few videos is in both sides all the same."""
    images = [
        image(
            f"video_{video}_frame_{frame:04}.jpg",
            "val" if frame == 0 else "train",
            classes=(0, 1) if video < 5 else (0,),
        )
        for video in range(40)
        for frame in range(5)
    ]
    split = split_of(surveyed(*images, names=("common", "rare")))
    assert {name: round(after, 3) for name, _, after in split.shares} == {"common": 0.2, "rare": 0.2}
    assert split.pieces == 0


def test_one_long_video_is_cut_into_pieces_of_neighbours():
    long, short = (
        film(lambda _, frame: "val" if frame % 5 == 0 else "train", videos=2, frames=count) for count in (100, 2)
    )
    split = split_of(surveyed(*long[:100], *short[2:]))
    frames = sorted(int(path[-8:-4]) for path in split.val if "video_0" in path)
    assert split.pieces > 1
    assert frames
    gaps = sum(after - before > 1 for before, after in itertools.pairwise(frames))
    assert gaps <= 2
    assert "cut into" in split.describe()


def test_images_of_one_scene_cannot_be_split():
    judged, split = leakage.judge(
        surveyed(*(image(f"{at}.jpg", s, seed="one") for s in ("train", "val") for at in (1, 2))), RULE
    )
    assert split is None
    assert "all images belong together" in judged.findings[0].remedies[0]


# Words


def test_a_share_is_never_nothing_of_something_nor_all_of_less():
    assert [
        format_percent(1, 100_000),
        format_percent(99_999, 100_000),
        format_percent(0, 5),
        format_percent(5, 5),
        format_percent(1, 8),
    ] == [
        "0.1%",
        "99.9%",
        "0%",
        "100%",
        "12%",
    ]


def test_a_name_is_shown_on_one_line():
    assert format_path("/data/a\nb\x1b[31m.jpg", "/data") == "a\\nb\\x1b[31m.jpg"
    assert len(format_path("x" * 5000)) == 120
