"""Finding lines of text in the detector's map, and the decoding of characters."""

import numpy as np
import reading as demo_reading


def test_boxes_of_connected_regions():
    probabilities = np.zeros((64, 96), np.float32)
    probabilities[40:48, 20:44] = 0.9  # 8 x 24: 1.6 * 192 / 64 = 4.8
    probabilities[8:16, 20:92] = 0.8  # 8 x 72: 1.6 * 576 / 160 = 5.76
    probabilities[30, 5] = 1.0  # a pixel is noise
    probabilities[56:62, 70:80] = demo_reading.THRESHOLD - 0.1
    probabilities[56:62, 50:60] = demo_reading.SCORE - 0.1
    assert demo_reading.find_boxes(probabilities) == [(14, 2, 96, 22), (15, 35, 49, 53)]


def test_a_line_is_decoded():
    """Repeated characters are one, unless the blank (class 0) stands between them."""

    class Recogniser:
        def run(self, pixels):
            assert pixels.shape == (1, 3, *demo_reading.LINE)
            assert pixels[..., 96:].max() == 0, "what is left of the width is filled up"
            return np.eye(4, dtype=np.float32)[[0, 1, 1, 0, 1, 2, 2, 3, 0]][None]

    page = demo_reading.draw_page().crop((0, 0, 96, 48))
    assert demo_reading.read_line(Recogniser(), page, ["a", "b", " "]) == "aab"


def test_the_page_holds_text():
    pixels = np.asarray(demo_reading.draw_page())
    assert pixels.shape == (*demo_reading.PAGE, 3)
    dark = (pixels.sum(axis=2) < 300).any(axis=1)
    assert np.count_nonzero(np.diff(dark.astype(int)) == 1) >= len(demo_reading.LINES)
