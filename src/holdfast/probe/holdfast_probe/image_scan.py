"""Checks the images and labels of a YOLO dataset: decodes each image cheaply and reads each line of its labels.

The supervisor runs this file's text with the training's interpreter, which has Pillow, in several processes. The first
line on its standard input contains the number of classes. Every further line names an image and its label file, and is
answered with one JSON line. The problems that it reports are those that Ultralytics would find.

This program writes nothing and trusts no file: formats whose decoders run programs are never opened, only the header is
read of an image that would take too much memory, and pipes and devices are not opened at all.
"""

import hashlib
import io
import json
import math
import os
import stat
import sys
import warnings

FORMATS = ("JPEG", "MPO", "PNG", "BMP", "TIFF", "WEBP", "JPEG2000", "AVIF")
SUFFIXES = {
    "JPEG": ("jpg", "jpeg", "mpo"),
    "MPO": ("jpg", "jpeg", "mpo"),
    "PNG": ("png",),
    "BMP": ("bmp",),
    "TIFF": ("tif", "tiff", "dng"),
    "WEBP": ("webp",),
    "JPEG2000": ("jp2",),
    "AVIF": ("avif",),
}
NEEDS_PLUGIN = ("heic", "heif", "dng", "avif")
MIN_SIDE = 10
MAX_BYTES = 256 << 20
"""A file up to this size is read at once; a larger one is read in chunks."""
MAX_DECODED = 384 << 20
"""Bytes that decoding one image may take."""
BYTES_PER_PIXEL = {"WEBP": 16, "AVIF": 16, "JPEG2000": 16, "PNG": 6}
"""Peak memory of the decoders, measured with 50 megapixels. All others need 7."""
LAST_BYTES = 65536
MAX_LABEL_BYTES = 8 << 20
MAX_OBJECTS = 20000
MAX_CLASSES = 65536
MAX_NOTES = 3
NOTE_LENGTH = 80
MIN_CONTRAST = 3.0
"""Standard deviation in grey levels that an image needs for a meaningful hash."""
TOLERANCE = 0.01
"""How far outside the image Ultralytics allows a coordinate to be."""


class ImageScanner:
    """Reads images with Pillow, if it is installed."""

    def __init__(self):
        try:
            from PIL import Image
        except Exception:
            self.image = None
            return
        Image.init()
        self.image = Image
        self.formats = [name for name in FORMATS if name in Image.OPEN]
        warnings.simplefilter("ignore")

    def scan(self, path):
        """Return the facts about one image."""
        facts = {}
        try:
            with open_file(path) as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode):
                    return {"problem": "not-a-file"}
                if status.st_size == 0:
                    return {"problem": "empty"}
                content = file.read(MAX_BYTES) if status.st_size <= MAX_BYTES else None
                facts["digest"] = compute_digest(file, content)
                if self.image is None:
                    facts["oddities"] = ["not-scanned"]
                    return facts
                source = io.BytesIO(content) if content is not None else file
                self.decode(source, path, facts)
                if "problem" not in facts:
                    check_end_of_file(source, facts)
        except FileNotFoundError:
            return {"problem": "missing"}
        except IsADirectoryError:
            return {"problem": "not-a-file"}
        except (OSError, ValueError) as error:  # ValueError: a NUL character in the name
            return {"problem": "refused", "detail": to_utf8(str(getattr(error, "strerror", None) or error))}
        return facts

    def decode(self, source, path, facts):
        suffix = path.rpartition(".")[2].lower()
        source.seek(0)
        try:
            with self.image.open(source, formats=self.formats) as image:
                self.describe(image, suffix, facts)
                if "problem" not in facts:
                    self.load(image, facts)
        except self.image.DecompressionBombError:
            facts["problem"] = "too-many-pixels"
        except self.image.UnidentifiedImageError:
            if suffix in NEEDS_PLUGIN:
                facts["oddities"] = ["not-scanned"]
            else:
                facts["problem"] = "not-an-image"
                facts["detail"] = guess_format(source)
        except Exception as error:  # decoders raise all kinds of exceptions
            text = str(error) or type(error).__name__
            facts["problem"] = "truncated" if "truncat" in text.lower() else "broken"
            facts["detail"] = to_utf8(text)

    def describe(self, image, suffix, facts):
        width, height = image.size
        facts["format"], facts["mode"] = image.format, image.mode
        if is_rotated(image):
            width, height = height, width
        facts["width"], facts["height"] = width, height
        oddities = facts.setdefault("oddities", [])
        if suffix not in SUFFIXES.get(image.format, (suffix,)):
            oddities.append("extension")
        if image.mode == "CMYK":
            oddities.append("cmyk")
        if image.mode.startswith("I") or image.mode == "F":
            oddities.append("16-bit")
        if min(width, height) < MIN_SIDE:
            facts["problem"] = "too-small"

    def load(self, image, facts):
        """Decode the whole image. A JPEG is decoded at an eighth of its size: this reads every byte and is cheaper."""
        width, height = image.size
        pixel_bytes = BYTES_PER_PIXEL.get(image.format, 7)
        if image.format in ("JPEG", "MPO"):
            # A baseline JPEG is decoded line by line, a progressive one in several passes over the whole image.
            pixel_bytes = 4 if image.info.get("progressive") else 0.1
            image.draft("L", (max(1, width // 8), max(1, height // 8)))
        if width * height * pixel_bytes > MAX_DECODED:
            if image.format == "PNG":
                image.verify()  # checks the checksum of every chunk without decoding
            facts["oddities"].append("not-decoded")
            return
        image.load()
        try:
            facts["image_hash"] = self.compute_hash(image)
        except Exception:  # some modes cannot be converted to a small grey image
            facts["image_hash"] = ""

    def compute_hash(self, image):
        """Return a perceptual hash of the image. Its bits tell whether each part of the image is brighter than the part
        to its right and the part below it. They stay the same when an image is saved again, made smaller or slightly
        brighter. Most of them also stay the same from one video frame to the next.
        """
        if image.mode in ("P", "1"):
            image = image.convert("RGB")
        if image.mode.startswith("I"):
            image = image.convert("F")
        smaller = min(image.size) // 64
        if smaller > 1:
            image = image.reduce(smaller)
        if image.mode not in ("L", "F"):
            image = image.convert("L")
        small = image.resize((9, 9), self.image.BILINEAR)
        grey = small.tobytes() if small.mode == "L" else memoryview(small.tobytes()).cast("f").tolist()
        if max(grey) > 255:  # 16 bits per pixel
            grey = [value / 257 for value in grey]
        mean = sum(grey) / 81
        if math.sqrt(sum((value - mean) ** 2 for value in grey) / 81) < MIN_CONTRAST:
            return ""
        bits = 0
        for row in range(8):
            for at in range(9 * row, 9 * row + 8):
                bits = bits << 2 | (grey[at] > grey[at + 1]) << 1 | (grey[at] > grey[at + 9])
        return format(bits, "032x")


def open_file(path):
    """Open a file for reading without blocking on a pipe."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        return os.fdopen(descriptor, "rb")
    except OSError:  # a folder
        os.close(descriptor)
        raise


def check_end_of_file(source, facts):
    """Check what follows the last pixel: Pillow does not require it, OpenCV and Ultralytics do."""
    source.seek(0, os.SEEK_END)
    source.seek(max(0, source.tell() - LAST_BYTES))
    last = source.read()
    if facts.get("format") == "JPEG" and not last.endswith(b"\xff\xd9"):
        facts["oddities"].append("tail")
    if facts.get("format") == "PNG" and b"IEND\xaeB`\x82" not in last:
        facts["problem"], facts["detail"] = "truncated", "its end is missing"


def to_utf8(text):
    """Return text that can be encoded as UTF-8, regardless of the names in it."""
    return text[:200].encode("utf-8", "replace").decode("utf-8")


def compute_digest(file, content):
    hashed = hashlib.blake2b(digest_size=16)
    if content is not None:
        hashed.update(content)
    else:
        for piece in iter(lambda: file.read(1 << 20), b""):
            hashed.update(piece)
    return hashed.hexdigest()


def is_rotated(image):
    """Return True if the image is displayed with width and height swapped."""
    try:
        return ("exif" in image.info or image.format == "TIFF") and image.getexif().get(274) in (5, 6, 7, 8)
    except Exception:
        return False


def guess_format(source):
    """Describe a file that is not an image, from its first bytes."""
    source.seek(0)
    start = source.read(64)
    known = (
        (b"GIF8", "it is a GIF"),
        (b"%PDF", "it is a PDF"),
        (b"PK\x03\x04", "it is a zip archive"),
        (b"version https://git-lfs", "it is a Git LFS pointer: the image itself was never downloaded"),
        (b"<svg", "it is an SVG"),
        (b"<!DOCTYPE", "it is a web page"),
        (b"<html", "it is a web page"),
        (b"{", "it is text"),
    )
    for mark, message in known:
        if start.lstrip()[: len(mark)].lower() == mark.lower():
            return message
    if not any(start):
        return "its first bytes are all zero"
    return "unknown format"


def parse_numbers(words):
    """Return the words as finite numbers, or None."""
    try:
        numbers = tuple(float(word) for word in words)
    except ValueError:
        return None
    return numbers if all(math.isfinite(number) for number in numbers) else None


def bounding_box(numbers):
    """Return the box around a polygon: its center, width and height."""
    xs, ys = numbers[1::2], numbers[2::2]
    left, top, right, bottom = min(xs), min(ys), max(xs), max(ys)
    return ((left + right) / 2, (top + bottom) / 2, right - left, bottom - top)


class Labels:
    """The lines of one label file, read as Ultralytics reads them."""

    def __init__(self, classes, columns, size):
        self.class_count, self.columns, self.size = classes, columns, size
        self.classes, self.sizes, self.faults, self.notes = [], [], {}, []

    def read(self, path):
        """Read the file and return its state. The content of its lines is stored in the attributes."""
        try:
            with open_file(path) as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode):
                    return "unreadable"
                if status.st_size > MAX_LABEL_BYTES:
                    return "too-large"
                text = file.read(MAX_LABEL_BYTES).decode("utf-8-sig")
        except (FileNotFoundError, NotADirectoryError):
            return "missing"
        except (OSError, ValueError):
            return "unreadable"
        rows = [(at, line.split()) for at, line in enumerate(text.splitlines(), 1) if line.strip()]
        if not rows:
            return "empty"
        polygons = self.columns is None and any(len(row) > 6 for _, row in rows)
        if polygons and any(len(row) == 5 for _, row in rows):
            at, row = next((at, row) for at, row in rows if len(row) == 5)
            self.add_fault("mixed", at, row)
        seen = set()
        for at, row in rows:
            self.read_line(at, row, polygons, seen)
        return "there"

    def read_line(self, at, row, polygons, seen):
        if not self.has_valid_length(len(row), polygons):
            self.add_fault("columns", at, row)
            return
        numbers = parse_numbers(row)
        if numbers is None:
            self.add_fault("unparsable", at, row)
            return
        if numbers in seen:
            self.add_fault("duplicate", at, row)
            return
        seen.add(numbers)
        class_id = numbers[0]
        if class_id % 1 != 0:
            self.add_fault("class-fraction", at, row)
        elif class_id < 0 or (self.class_count is not None and class_id >= self.class_count):
            self.add_fault("class-range", at, row)
        box = bounding_box(numbers) if polygons and len(row) != 5 else numbers[1:5]
        if not self.is_misplaced(at, row, box) and class_id % 1 == 0:
            self.add_object(int(class_id), box)

    def add_object(self, class_id, box):
        if 0 <= class_id < MAX_CLASSES and len(self.classes) < MAX_OBJECTS:
            self.classes.append(class_id)
            width, height = self.size
            if width and height:
                self.sizes.append(round(math.sqrt(box[2] * box[3] * width * height) / max(width, height), 6))

    def has_valid_length(self, length, polygons):
        if self.columns is not None:  # a dataset with keypoints
            return length == self.columns
        if polygons:
            return length == 5 or (length >= 7 and length % 2 == 1)
        return length == 5

    def is_misplaced(self, at, row, box):
        """Return True if the box is unusable. A box that only extends over the edge is clipped and usable."""
        x, y, width, height = box
        if max(box) > 1 + TOLERANCE or min(x, y) < -TOLERANCE or min(width, height) < 0:
            self.add_fault("outside", at, row)
            return True
        image_width, image_height = self.size
        if width * (image_width or 1e9) < 1e-3 or height * (image_height or 1e9) < 1e-3:
            self.add_fault("degenerate", at, row)
            return True
        edges = (x - width / 2, y - height / 2, 1 - x - width / 2, 1 - y - height / 2)
        if min(edges) < -TOLERANCE:
            self.add_fault("sticks-out", at, row)
        return False

    def add_fault(self, kind, at, row):
        self.faults[kind] = self.faults.get(kind, 0) + 1
        if self.faults[kind] <= MAX_NOTES:
            self.notes.append([kind, at, " ".join(row)[:NOTE_LENGTH]])


def answer(scanner, request, classes, columns):
    """Return all facts about one image and its labels."""
    index, image, label = request
    facts = scanner.scan(image)
    labels = Labels(classes, columns, (facts.get("width", 0), facts.get("height", 0)))
    facts["label"] = labels.read(label)
    facts["index"] = index
    facts.update(classes=labels.classes, sizes=labels.sizes, faults=labels.faults, notes=labels.notes)
    return facts


def main():
    out = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    scanner = ImageScanner()
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)  # decoders may print, which must not mix with the answers
    os.dup2(quiet, 2)
    first = sys.stdin.buffer.readline()
    if not first:
        return
    settings = json.loads(first)
    classes, columns = settings["classes"], settings["columns"]
    version = getattr(sys.modules.get("PIL"), "__version__", None) if scanner.image is not None else None
    out.write(json.dumps({"pillow": version}) + "\n")
    for line in iter(sys.stdin.buffer.readline, b""):
        out.write(json.dumps(answer(scanner, json.loads(line), classes, columns)) + "\n")


if __name__ == "__main__":
    main()
