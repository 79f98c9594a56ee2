//! Pictures as SVG on a white panel. Lengths are pixels, y grows downwards.

/// The same white panel as in docs/pictures/path.svg, so that the colours hold on light and dark pages.
const STYLE: &str = "
    .panel { fill: #ffffff; stroke: #b8c4d0 }
    .ours { fill: #1f7a5c; stroke: #1f7a5c }
    .other { fill: #3a6ea5; stroke: #3a6ea5 }
    .theirs { fill: #7d8a97; stroke: #7d8a97 }
    .grid { stroke: #dfe5ea }
    .axis { stroke: #7d8a97 }
    .goal { stroke: #b3541e; stroke-width: 1.6; stroke-dasharray: 5 3 }
    .curve { fill: none; stroke-width: 2 }
    .bar { stroke: none }
    .name { fill: #16202a }
    .strong { fill: #16202a; font-weight: 600 }
    .note { fill: #47545f; font-size: 12px }
    .warn { fill: #b3541e; font-size: 12px }
    .note, .warn { paint-order: stroke; stroke: #ffffff; stroke-width: 4px }
";

const FONTS: &str =
    "system-ui, -apple-system, 'Segoe UI', Roboto, Arial, 'DejaVu Sans', sans-serif";

/// Where a text stands beside its point.
#[derive(Clone, Copy)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

pub(super) struct Picture {
    lines: Vec<String>,
}

impl Picture {
    pub(super) fn new(width: u32, height: usize, title: &str) -> Self {
        let start = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-size=\"13\" \
             role=\"img\" font-family=\"{FONTS}\" aria-label=\"{}\">",
            escaped(title)
        );
        let panel = format!(
            "  <rect class=\"panel\" x=\"0.5\" y=\"0.5\" width=\"{}\" height=\"{}\" rx=\"10\"/>",
            width - 1,
            height - 1
        );
        let mut picture = Self { lines: vec![start, format!("  <style>{STYLE}  </style>"), panel] };
        picture.text(20.0, 28.0, title, "strong", Anchor::Start);
        picture
    }

    pub(super) fn text(&mut self, x: f64, y: f64, text: &str, style: &str, anchor: Anchor) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        self.lines.push(format!(
            "  <text class=\"{style}\" x=\"{}\" y=\"{}\" text-anchor=\"{anchor}\">{}</text>",
            length(x),
            length(y),
            escaped(text)
        ));
    }

    pub(super) fn line(&mut self, [x1, y1]: [f64; 2], [x2, y2]: [f64; 2], style: &str) {
        self.shape("line", style, &[("x1", x1), ("y1", y1), ("x2", x2), ("y2", y2)]);
    }

    /// A bar to the right of a point.
    pub(super) fn bar(&mut self, [x, y]: [f64; 2], width: f64, style: &str) {
        let lengths = [("x", x), ("y", y - 7.0), ("width", width), ("height", 14.0), ("rx", 2.0)];
        self.shape("rect", &format!("bar {style}"), &lengths);
    }

    pub(super) fn dot(&mut self, [x, y]: [f64; 2], style: &str) {
        self.shape("circle", style, &[("cx", x), ("cy", y), ("r", 4.5)]);
    }

    pub(super) fn curve(&mut self, points: &[[f64; 2]], style: &str) {
        let points = points.iter().map(|[x, y]| format!("{},{}", length(*x), length(*y)));
        let points = points.collect::<Vec<_>>().join(" ");
        self.lines.push(format!("  <polyline class=\"curve {style}\" points=\"{points}\"/>"));
    }

    /// Dots with their names, one after the other.
    pub(super) fn legend(&mut self, mut x: f64, y: f64, entries: &[(&str, &str)]) {
        for (name, style) in entries {
            self.dot([x, y - 4.0], style);
            self.text(x + 10.0, y, name, "note", Anchor::Start);
            x += 36.0 + 6.5 * count(name.len());
        }
    }

    pub(super) fn svg(&self) -> String {
        format!("{}\n</svg>\n", self.lines.join("\n"))
    }

    fn shape(&mut self, tag: &str, style: &str, lengths: &[(&str, f64)]) {
        let attributes: Vec<String> =
            lengths.iter().map(|(name, value)| format!("{name}=\"{}\"", length(*value))).collect();
        self.lines.push(format!("  <{tag} class=\"{style}\" {}/>", attributes.join(" ")));
    }
}

/// The values from `low` to `high`, on the pixels from `start` to `end`.
pub(super) struct Scale {
    pub(super) low: f64,
    pub(super) high: f64,
    pub(super) start: f64,
    pub(super) end: f64,
}

impl Scale {
    pub(super) fn at(&self, value: f64) -> f64 {
        self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)
    }

    /// Vertical grid lines from `top` to `bottom`, and their values below them.
    pub(super) fn draw(&self, picture: &mut Picture, [top, bottom]: [f64; 2], ticks: &[&str]) {
        for tick in ticks {
            let x = self.at(super::table::numbers(tick)[0]);
            picture.line([x, top], [x, bottom], "grid");
            picture.text(x, bottom + 17.0, tick, "note", Anchor::Middle);
        }
    }
}

/// A number of rows or letters, for lengths.
pub(super) fn count(number: usize) -> f64 {
    u32::try_from(number).map_or(f64::INFINITY, f64::from)
}

/// A length, with a decimal where it is not whole.
fn length(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").unwrap_or(&text).to_owned()
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
