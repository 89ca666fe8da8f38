"""Looks at the images and labels of a YOLO data set: decodes each image, cheaply, and reads each line of its labels.

The supervisor runs this file's text under the interpreter that trains, which has Pillow, in several processes. The first
line on its standard input says how many classes there are; every further one names an image and its label file, and is
answered with one JSON line. What is found wrong with a file is what Ultralytics would find wrong with it.

Nothing here is written, and nothing in a file is trusted: formats whose decoders run programs are never opened, an image
that would take too much memory is looked at by its header only, pipes and devices are not opened at all.
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
"""Of a file that is read whole; a larger one is read in pieces."""
MAX_DECODED = 384 << 20
"""Bytes that decoding one image may take."""
BYTES_A_PIXEL = {"WEBP": 16, "AVIF": 16, "JPEG2000": 16, "PNG": 6}
"""That decoders need at their peak, measured with 50 megapixels; of others 7."""
LAST_BYTES = 65536
MAX_LABEL_BYTES = 8 << 20
MAX_OBJECTS = 20000
MAX_CLASSES = 65536
MAX_NOTES = 3
NOTE_LENGTH = 80
FLAT = 3.0
"""Levels of grey by which an image must vary to be told from others by its look."""
FORGIVEN = 0.01
"""How far outside of the image Ultralytics lets a number be."""


class ImageScanner:
    """Reads images with Pillow, where there is one."""

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
        """What is seen of one image."""
        facts = {}
        try:
            with opened(path) as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode):
                    return {"problem": "not-a-file"}
                if status.st_size == 0:
                    return {"problem": "empty"}
                content = file.read(MAX_BYTES) if status.st_size <= MAX_BYTES else None
                facts["digest"] = digest(file, content)
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
        except (OSError, ValueError) as error:  # a NUL in the name
            return {"problem": "refused", "detail": plain(str(getattr(error, "strerror", None) or error))}
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
                facts["detail"] = sniffed(source)
        except Exception as error:  # decoders raise whatever they like
            text = str(error) or type(error).__name__
            facts["problem"] = "truncated" if "truncat" in text.lower() else "broken"
            facts["detail"] = plain(text)

    def describe(self, image, suffix, facts):
        width, height = image.size
        facts["format"], facts["mode"] = image.format, image.mode
        if turned(image):
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
        """Decode all of it: a JPEG at an eighth of its size, which reads every byte and is several times cheaper."""
        width, height = image.size
        each = BYTES_A_PIXEL.get(image.format, 7)
        if image.format in ("JPEG", "MPO"):
            # Lines are decoded as they come, but those of a progressive one in several passes over all of it.
            each = 4 if image.info.get("progressive") else 0.1
            image.draft("L", (max(1, width // 8), max(1, height // 8)))
        if width * height * each > MAX_DECODED:
            if image.format == "PNG":
                image.verify()  # the checksum of every chunk, without a decoder
            facts["oddities"].append("not-decoded")
            return
        image.load()
        try:
            facts["image_hash"] = self.hash_of(image)
        except Exception:  # of some modes there is no small grey image
            facts["image_hash"] = ""

    def hash_of(self, image):
        """Whether each part of the image is brighter than the one to its right, and than the one below it.

        Such bits stay the same when an image is saved again, made smaller or a little brighter, and most of them stay
        when the camera moves on by one frame.
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
        if max(grey) > 255:  # 16 bits a pixel
            grey = [value / 257 for value in grey]
        mean = sum(grey) / 81
        if math.sqrt(sum((value - mean) ** 2 for value in grey) / 81) < FLAT:
            return ""
        bits = 0
        for row in range(8):
            for at in range(9 * row, 9 * row + 8):
                bits = bits << 2 | (grey[at] > grey[at + 1]) << 1 | (grey[at] > grey[at + 9])
        return format(bits, "032x")


def opened(path):
    """To read, without waiting for whoever would write to a pipe."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        return os.fdopen(descriptor, "rb")
    except OSError:  # a folder
        os.close(descriptor)
        raise


def check_end_of_file(source, facts):
    """What comes after the last pixel: Pillow does not ask for it, OpenCV and Ultralytics do."""
    source.seek(0, os.SEEK_END)
    source.seek(max(0, source.tell() - LAST_BYTES))
    last = source.read()
    if facts.get("format") == "JPEG" and not last.endswith(b"\xff\xd9"):
        facts["oddities"].append("tail")
    if facts.get("format") == "PNG" and b"IEND\xaeB`\x82" not in last:
        facts["problem"], facts["detail"] = "truncated", "its end is missing"


def plain(text):
    """Text that can be written as UTF-8, whatever names are in it."""
    return text[:200].encode("utf-8", "replace").decode("utf-8")


def digest(file, content):
    hashed = hashlib.blake2b(digest_size=16)
    if content is not None:
        hashed.update(content)
    else:
        for piece in iter(lambda: file.read(1 << 20), b""):
            hashed.update(piece)
    return hashed.hexdigest()


def turned(image):
    """Whether the image is shown with width and height exchanged."""
    try:
        return ("exif" in image.info or image.format == "TIFF") and image.getexif().get(274) in (5, 6, 7, 8)
    except Exception:
        return False


def sniffed(source):
    """What a file that is no image seems to be, from its first bytes."""
    source.seek(0)
    start = source.read(64)
    known = (
        (b"GIF8", "it is a GIF"),
        (b"%PDF", "it is a PDF"),
        (b"PK\x03\x04", "it is a zip archive"),
        (b"version https://git-lfs", "it is a Git LFS pointer: the image itself was never fetched"),
        (b"<svg", "it is an SVG"),
        (b"<!DOCTYPE", "it is a web page"),
        (b"<html", "it is a web page"),
        (b"{", "it is text"),
    )
    for mark, message in known:
        if start.lstrip()[: len(mark)].lower() == mark.lower():
            return message
    if not any(start):
        return "it begins with zeros only"
    return "no known format"


def finite(words):
    """The words as numbers, or None."""
    try:
        numbers = tuple(float(word) for word in words)
    except ValueError:
        return None
    return numbers if all(math.isfinite(number) for number in numbers) else None


def surrounding(numbers):
    """The box around a polygon: its centre, width and height."""
    xs, ys = numbers[1::2], numbers[2::2]
    left, top, right, bottom = min(xs), min(ys), max(xs), max(ys)
    return ((left + right) / 2, (top + bottom) / 2, right - left, bottom - top)


class Labels:
    """The lines of one label file, read as Ultralytics reads them."""

    def __init__(self, classes, columns, size):
        self.most_classes, self.columns, self.size = classes, columns, size
        self.classes, self.sizes, self.faults, self.notes = [], [], {}, []

    def read(self, path):
        """The state of the file; what its lines hold is kept."""
        try:
            with opened(path) as file:
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
            self.fault("mixed", at, row)
        seen = set()
        for at, row in rows:
            self.line(at, row, polygons, seen)
        return "there"

    def line(self, at, row, polygons, seen):
        if not self.fits(len(row), polygons):
            self.fault("columns", at, row)
            return
        numbers = finite(row)
        if numbers is None:
            self.fault("unparsable", at, row)
            return
        if numbers in seen:
            self.fault("duplicate", at, row)
            return
        seen.add(numbers)
        kind = numbers[0]
        if kind % 1 != 0:
            self.fault("class-fraction", at, row)
        elif kind < 0 or (self.most_classes is not None and kind >= self.most_classes):
            self.fault("class-range", at, row)
        box = surrounding(numbers) if polygons and len(row) != 5 else numbers[1:5]
        if not self.misplaced(at, row, box) and kind % 1 == 0:
            self.keep(int(kind), box)

    def keep(self, kind, box):
        if 0 <= kind < MAX_CLASSES and len(self.classes) < MAX_OBJECTS:
            self.classes.append(kind)
            width, height = self.size
            if width and height:
                self.sizes.append(round(math.sqrt(box[2] * box[3] * width * height) / max(width, height), 6))

    def fits(self, length, polygons):
        if self.columns is not None:  # a data set with key points
            return length == self.columns
        if polygons:
            return length == 5 or (length >= 7 and length % 2 == 1)
        return length == 5

    def misplaced(self, at, row, box):
        """Whether the box is of no use; one that only reaches over the edge is clipped and is."""
        x, y, width, height = box
        if max(box) > 1 + FORGIVEN or min(x, y) < -FORGIVEN or min(width, height) < 0:
            self.fault("outside", at, row)
            return True
        across, down = self.size
        if width * (across or 1e9) < 1e-3 or height * (down or 1e9) < 1e-3:
            self.fault("degenerate", at, row)
            return True
        edges = (x - width / 2, y - height / 2, 1 - x - width / 2, 1 - y - height / 2)
        if min(edges) < -FORGIVEN:
            self.fault("sticks-out", at, row)
        return False

    def fault(self, kind, at, row):
        self.faults[kind] = self.faults.get(kind, 0) + 1
        if self.faults[kind] <= MAX_NOTES:
            self.notes.append([kind, at, " ".join(row)[:NOTE_LENGTH]])


def answer(scanner, request, classes, columns):
    """Everything about one image and its labels."""
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
    os.dup2(quiet, 1)  # what a decoder prints is not an answer
    os.dup2(quiet, 2)
    first = sys.stdin.buffer.readline()
    if not first:
        return
    told = json.loads(first)
    classes, columns = told["classes"], told["columns"]
    version = getattr(sys.modules.get("PIL"), "__version__", None) if scanner.image is not None else None
    out.write(json.dumps({"pillow": version}) + "\n")
    for line in iter(sys.stdin.buffer.readline, b""):
        out.write(json.dumps(answer(scanner, json.loads(line), classes, columns)) + "\n")


if __name__ == "__main__":
    main()
