// Checks that run inside the page. Each returns what is wrong.

/** Texts whose contrast with what lies behind them is below 4.5, or below 3 for large text (WCAG 2.2, AA). */
export function poorContrasts() {
  const paint = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
  const known = new Map();
  function parse(colour) {
    if (!known.has(colour)) {
      paint.clearRect(0, 0, 1, 1);
      paint.fillStyle = colour;
      paint.fillRect(0, 0, 1, 1);
      known.set(colour, [...paint.getImageData(0, 0, 1, 1).data]);
    }
    return known.get(colour);
  }
  function over([r, g, b, a], [r2, g2, b2]) {
    const part = a / 255;
    return [r * part + r2 * (1 - part), g * part + g2 * (1 - part), b * part + b2 * (1 - part), 255];
  }
  function behind(element) {
    if (element === null) return parse(getComputedStyle(document.body).backgroundColor);
    const own = parse(getComputedStyle(element).backgroundColor);
    return own[3] === 255 ? own : over(own, behind(element.parentElement));
  }
  function luminance([r, g, b]) {
    const [red, green, blue] = [r, g, b].map(value => {
      const part = value / 255;
      return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  }
  const found = new Set();
  const seen = new Set();
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    if (!texts.currentNode.data.trim() || element.closest('.hidden, option, noscript, script')) continue;
    const style = getComputedStyle(element);
    const background = behind(element);
    const colour = over(parse(style.color), background);
    const large = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.66 && Number(style.fontWeight) >= 700);
    const key = `${colour} on ${background}${large}`;
    if (seen.has(key)) continue;
    seen.add(key);
    const [light, dark] = [luminance(colour), luminance(background)].sort((a, b) => b - a);
    const ratio = (light + 0.05) / (dark + 0.05);
    if (ratio < (large ? 3 : 4.5)) found.add(`${ratio.toFixed(2)}: ${texts.currentNode.data.trim().slice(0, 40)}`);
  }
  return [...found];
}

/** Luminances of the twelve steps of the colour scale, and of the ground. */
export function scaleLuminances() {
  const paint = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
  const probe = document.body.appendChild(document.createElement('i'));
  const values = [...Array(12).keys()].map(i => `--scale-${i}`).concat('--ground').map(name => {
    probe.style.color = `var(${name})`;
    paint.fillStyle = getComputedStyle(probe).color;
    paint.fillRect(0, 0, 1, 1);
    const [red, green, blue] = [...paint.getImageData(0, 0, 1, 1).data].slice(0, 3).map(value => {
      const part = value / 255;
      return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  });
  probe.remove();
  return values;
}

/** Controls that a screen reader could not name. */
export function unnamedControls() {
  return [...document.querySelectorAll('a, button, input, select, canvas, summary')]
    .filter(one => !(one.getAttribute('aria-label') || one.textContent.trim() || one.closest('label')?.textContent.trim()))
    .map(one => one.outerHTML.slice(0, 120));
}
