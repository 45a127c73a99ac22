"""A report's page, taken apart."""

import json
import re
from html.parser import HTMLParser


class Page(HTMLParser):
    """What stands in a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.open, self.texts, self.attributes = [], [], {}, []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes.append((tag, dict(attributes)))
        if tag not in ("meta", "br", "link", "img", "input"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open:
            self.texts[self.open[-1]] = self.texts.get(self.open[-1], "") + data

    def data(self, text):
        found = re.search(r'<script type="application/json" id="report-data">(.*?)</script>', text, re.DOTALL)
        return json.loads(found[1])
