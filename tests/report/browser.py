"""A Chromium without a window, and what the tests ask it."""

import shutil

import pytest

CONTRASTS = """
const channel = (part) => (part /= 255, part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
const parse = (text) => { const all = text.match(/[\\d.]+/g).map(Number); return all.length === 3 ? [...all, 1] : all; };
const luminance = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
const over = (front, back) => front.slice(0, 3).map((part, i) => part * front[3] + back[i] * (1 - front[3]));
function behind(element) {
  const own = element.getBoundingClientRect(), x = own.x + own.width / 2, y = own.y + own.height / 2;
  const drawing = element.closest("svg.topology");
  if (drawing) {
    const under = [...drawing.querySelectorAll("rect")].filter((rect) => {
      const box = rect.getBoundingClientRect();
      return box.x <= x && x <= box.right && box.y <= y && y <= box.bottom;
    });
    if (under.length) return parse(getComputedStyle(under.at(-1)).fill);
  }
  for (let at = element; at; at = at.parentElement) {
    const colour = parse(getComputedStyle(at).backgroundColor);
    if (colour[3] > 0) return at.parentElement && colour[3] < 1 ? over(colour, behind(at.parentElement)) : colour;
  }
  return [255, 255, 255, 1];
}
const found = [], texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (texts.nextNode()) {
  const text = texts.currentNode.textContent.trim(), element = texts.currentNode.parentElement;
  const left = "script, style, noscript, .bartext, .hoverlayer, .notifier";
  if (!text || !element.checkVisibility() || element.closest(left)) continue;
  const style = getComputedStyle(element), back = behind(element);
  const front = over(parse(element.namespaceURI.endsWith("svg") ? style.fill : style.color), back);
  const [dark, light] = [luminance(front), luminance(back)].sort((a, b) => a - b);
  found.push([text.slice(0, 40), (light + 0.05) / (dark + 0.05)]);
}
return found;
"""


def start(folder):
    """A driver; the test is skipped, with the reason, where something is missing."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="the package selenium is not installed")
    programs = {name: shutil.which(name) for name in ("chromium", "chromedriver")}
    for name, path in programs.items():
        if path is None:
            package = {"chromedriver": "chromium-driver"}.get(name, name)
            pytest.skip(f"{name} is not installed: apt-get install {package}")
    options = webdriver.ChromeOptions()
    options.binary_location = programs["chromium"]
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-dev-shm-usage",
        "--disable-gpu",
        "--window-size=1400,1000",
    ):
        options.add_argument(argument)
    options.add_argument(f"--user-data-dir={folder}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options, webdriver.ChromeService(programs["chromedriver"]))


def emulate(driver, media="", **features):
    """Make the page believe that it is printed, or that the reader prefers something: ``prefers_color_scheme="dark"``."""
    wanted = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": wanted})


def too_faint(driver):
    """Texts whose contrast is below 4.5 to 1 (WCAG 2.2, level AA), with their contrast."""
    found = driver.execute_script(CONTRASTS)
    assert len(found) > 10
    return [(text, round(ratio, 2)) for text, ratio in found if ratio < 4.5]


def wider_than_the_window(driver):
    """Whether the page can be scrolled sideways."""
    root = "document.documentElement"
    return driver.execute_script(f"return {root}.scrollWidth > {root}.clientWidth")


def reached_with_tab(driver, presses):
    """Classes, names and texts of what gets the focus, one after the other."""
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.keys import Keys

    driver.execute_script("document.activeElement.blur()")
    reached = []
    for _ in range(presses):
        ActionChains(driver).send_keys(Keys.TAB).perform()
        reached.append(driver.execute_script(
            "const e = document.activeElement, s = getComputedStyle(e);"
            "return {tag: e.tagName, name: (e.getAttribute('aria-label') || e.textContent).trim().slice(0, 40),"
            " classes: e.className, outline: s.outlineStyle}"))  # fmt: skip
    return reached
