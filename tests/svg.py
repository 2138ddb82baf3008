"""What is in a picture: its words and where they lie, its boxes and what they tell."""

import xml.etree.ElementTree as ElementTree
from itertools import combinations, pairwise

from castile.launch.pictures.drawing import SMALL, Box, length

SPACE = "{http://www.w3.org/2000/svg}"
SHARE = {"start": 0.0, "middle": 0.5, "end": 1.0}


class Picture:
    """An SVG text, read. Raises where it is not well-formed."""

    def __init__(self, text: str) -> None:
        self.root = ElementTree.fromstring(text)
        self.whole = Box(0, 0, float(self.root.get("width")), float(self.root.get("height")))

    def all(self, kind: str) -> list[ElementTree.Element]:
        return list(self.root.iter(f"{SPACE}{kind}"))

    def titled(self, kind: str) -> list[tuple[str, ElementTree.Element]]:
        """The elements of a kind that tell something to who points at them."""
        found = [(element.find(f"{SPACE}title"), element) for element in self.all(kind)]
        return [(title.text, element) for title, element in found if title is not None]

    @property
    def words(self) -> list[tuple[str, Box]]:
        """All words, and what they take at the most."""
        found = []
        for text in self.all("text"):
            x, y, size = (float(text.get(what)) for what in ("x", "y", "font-size"))
            width = length(text.text, size)
            left = x - width * SHARE[text.get("text-anchor")]
            found.append((text.text, Box(left, y - size, left + width, y)))
        return found

    @property
    def boxes(self) -> list[Box]:
        """Where its rectangles lie, but for the white one below all."""
        return [box_of(rect) for rect in self.all("rect")[1:]]

    @property
    def legend(self) -> dict[str, str]:
        """The colours of a legend of boxes, by their words. Raises AssertionError where two are alike."""
        found = {}
        for box, text in pairwise(list(self.root)[1:]):
            kinds = [element.tag.removeprefix(SPACE) for element in (box, text)]
            if kinds == ["rect", "text"] and float(box.get("width")) == SMALL:
                assert 3 < float(text.get("x")) - box_of(box).right < 5
                found[text.text] = box.get("fill")
        assert len(set(found.values())) == len(found)
        return found

    def is_readable(self) -> bool:
        """Whether words lie apart, and everything inside and to be seen. Raises AssertionError where it does not."""
        for (one, a), (other, b) in combinations(self.words, 2):
            assert not a.meets(b), f"{one!r} lies on {other!r}"
        points = [Box(x, y, x, y) for x, y in self.points]
        for what, box in (*self.words, *(("a box", box) for box in self.boxes), *(("a line", box) for box in points)):
            below, beyond = (box.left, box.top), (box.right, box.bottom)
            is_inside = min(below) >= 0 and all(map(float.__le__, beyond, self.whole[2:]))
            assert is_inside, f"{what!r} lies outside, {box}"
        for box in self.boxes:
            assert box.left <= box.right and box.top < box.bottom, f"nobody sees {box}"
        return True

    @property
    def points(self) -> list[tuple[float, float]]:
        """All points through which lines go."""
        found = [
            tuple(map(float, pair.split(","))) for drawn in self.all("polyline") for pair in drawn.get("points").split()
        ]
        for drawn in self.all("line"):
            found += [tuple(float(drawn.get(name)) for name in names) for names in (("x1", "y1"), ("x2", "y2"))]
        return found


def box_of(rect: ElementTree.Element) -> Box:
    left, top, width, height = (float(rect.get(name)) for name in ("x", "y", "width", "height"))
    return Box(left, top, left + width, top + height)
