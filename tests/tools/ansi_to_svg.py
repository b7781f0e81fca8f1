"""Draws what `tmux capture-pane -e` prints as an SVG: text on a dark screen, with the styles that we use.

    ansi_to_svg.py TITLE < capture > picture.svg
"""

import re
import sys
import unicodedata
from html import escape

WIDTH, HEIGHT, MARGIN, BAR = 8.4, 19, 18, 34
FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
INK, PAPER, EDGE = "#d6deeb", "#10151f", "#263043"
COLOURS = ["#5c6773", "#ff6b6b", "#7fd88f", "#f5c451", "#6cb6ff", "#d2a8ff", "#5ad4e6", "#d6deeb"]


def columns(text):
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


class Style:
    def __init__(self):
        self.colour, self.flags = INK, set()

    def take(self, code):
        flags = {1: "bold", 2: "dim", 3: "italic", 4: "underline", 9: "strike"}
        if code == 0:
            self.__init__()
        elif code in flags:
            self.flags.add(flags[code])
        elif code == 22:
            self.flags -= {"bold", "dim"}
        elif code in (23, 24, 29):
            self.flags.discard({23: "italic", 24: "underline", 29: "strike"}[code])
        elif 30 <= code <= 37:
            self.colour = COLOURS[code - 30]
        elif 90 <= code <= 97:
            self.colour = COLOURS[code - 90]
        elif code == 39:
            self.colour = INK

    def attributes(self):
        found = [f'fill="{self.colour}"']
        if "bold" in self.flags:
            found.append('font-weight="bold"')
        if "dim" in self.flags:
            found.append('opacity="0.6"')
        if "italic" in self.flags:
            found.append('font-style="italic"')
        lines = {"underline": "underline", "strike": "line-through"}
        drawn = [lines[flag] for flag in sorted(self.flags & lines.keys())]
        if drawn:
            found.append(f'text-decoration="{" ".join(drawn)}"')
        return " ".join(found)


def draw(title, lines):
    wide = max([columns(re.sub(r"\x1b\[[0-9;]*m", "", line)) for line in lines] + [60])
    width, height = wide * WIDTH + 2 * MARGIN, len(lines) * HEIGHT + BAR + 2 * MARGIN
    print(f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}"')
    print(f'     viewBox="0 0 {width:.0f} {height:.0f}" font-family="{FONT}" font-size="14">')
    print(f'<rect width="100%" height="100%" rx="9" fill="{PAPER}" stroke="{EDGE}"/>')
    for n, colour in enumerate([COLOURS[1], COLOURS[3], COLOURS[2]]):
        print(f'<circle cx="{20 + 20 * n}" cy="{BAR / 2}" r="6" fill="{colour}"/>')
    print(f'<text x="50%" y="22" text-anchor="middle" fill="{INK}" opacity="0.7">{escape(title)}</text>')
    style = Style()
    for n, line in enumerate(lines):
        y, column = BAR + MARGIN + n * HEIGHT + 8, 0
        for piece in re.split(r"(\x1b\[[0-9;]*m)", line):
            codes = re.fullmatch(r"\x1b\[([0-9;]*)m", piece)
            if codes:
                for code in (codes[1] or "0").split(";"):
                    style.take(int(code or 0))
                continue
            # Runs between spaces have fixed places: fonts differ in their widths.
            for run in re.finditer(r"\S+(?: \S+)*", piece):
                x = MARGIN + (column + columns(piece[: run.start()])) * WIDTH
                long = columns(run[0]) * WIDTH
                print(
                    f'<text x="{x:.1f}" y="{y}" textLength="{long:.1f}" xml:space="preserve" '
                    f"{style.attributes()}>{escape(run[0])}</text>"
                )
            column += columns(piece)
    print("</svg>")


if __name__ == "__main__":
    draw(sys.argv[1], sys.stdin.read().rstrip().split("\n"))
