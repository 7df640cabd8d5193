//! Bits per layer and side as SVG.

use std::fmt::Write as _;

use super::show::Shown;

const HEIGHT: f64 = 300.0;
/// Of the bars: left, top, bottom.
const LEFT: f64 = 46.0;
const TOP: f64 = 58.0;
const BOTTOM: f64 = 252.0;
/// Width of a layer's two bars and the space around them.
const LAYER: f64 = 20.0;
const BAR: f64 = 8.0;
/// Keys and values: told apart in light and dark, and by those who see few colours.
const COLOURS: [(&str, &str); 2] = [("keys", "#d55e00"), ("values", "#0072b2")];

/// Two bars a layer, over a scale of bits.
pub(super) fn bars(shown: &Shown) -> String {
    let right = LEFT + LAYER * shown.layers.len() as f64;
    let (width, middle) = ((right + 20.0).max(360.0), f64::midpoint(TOP, BOTTOM));
    let y = |bits: f64| BOTTOM - bits / 16.0 * (BOTTOM - TOP);
    let title = escape(&format!("{}: {:.3} bits", shown.title, shown.mean_bits));
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {HEIGHT}\" role=\"img\" \
         font-family=\"system-ui, sans-serif\" font-size=\"12\">\n\
         <title>{title}</title>\n\
         <style>.ink{{fill:#1f2328}}.grid{{stroke:#8c959f;stroke-opacity:.3}}.back{{fill:#fff}}\
         @media (prefers-color-scheme:dark){{.ink{{fill:#e6edf3}}.back{{fill:#0d1117}}}}</style>\n\
         <rect class=\"back\" width=\"{width}\" height=\"{HEIGHT}\"/>\n\
         <text class=\"ink\" x=\"{LEFT}\" y=\"20\" font-weight=\"600\">{title}</text>\n\
         <text class=\"ink\" transform=\"translate(14 {middle}) rotate(-90)\" \
         text-anchor=\"middle\">bits</text>\n",
    );
    // Writing to a String cannot fail.
    for (index, (name, colour)) in COLOURS.iter().enumerate() {
        let x = LEFT + 80.0 * index as f64;
        let _ = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"32\" width=\"10\" height=\"10\" fill=\"{colour}\"/>\
             <text class=\"ink\" x=\"{}\" y=\"41\">{name}</text>",
            x + 15.0
        );
    }
    for bits in [0.0, 2.0, 4.0, 8.0, 16.0] {
        let at = y(bits);
        let _ = writeln!(
            svg,
            "<path class=\"grid\" d=\"M{LEFT} {at:.1}H{right}\"/>\
             <text class=\"ink\" x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{bits}</text>",
            LEFT - 6.0,
            at + 4.0
        );
    }
    for (layer, pages) in shown.layers.iter().enumerate() {
        let left = LEFT + LAYER * layer as f64 + (LAYER - 2.0 * BAR) / 2.0;
        for (side, page) in pages.iter().enumerate() {
            let (name, colour) = COLOURS[side];
            let _ = writeln!(
                svg,
                "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{BAR}\" height=\"{:.1}\" fill=\"{colour}\">\
                 <title>layer {layer}, {name}: {}, {:.2} bits</title></rect>",
                left + BAR * side as f64,
                y(page.bits),
                BOTTOM - y(page.bits),
                page.format,
                page.bits
            );
        }
        if layer.is_multiple_of(5) {
            let _ = writeln!(
                svg,
                "<text class=\"ink\" x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{layer}</text>",
                left + BAR,
                BOTTOM + 16.0
            );
        }
    }
    let _ = writeln!(
        svg,
        "<text class=\"ink\" x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">layer</text>\n</svg>",
        f64::midpoint(LEFT, right),
        BOTTOM + 36.0
    );
    svg
}

/// Text inside an element.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::super::show::Page;
    use super::*;
    use ebb_kernels::formats::FormatId;

    #[test]
    fn every_page_is_a_bar_of_its_height() {
        let page = |format, bits| Page { format, bits };
        let shown = Shown {
            title: "a <b> & c".to_owned(),
            mean_bits: 7.0,
            layers: vec![[page(FormatId::F16, 16.0), page(FormatId::Int8, 8.0)]; 7],
        };
        let svg = bars(&shown);
        assert_eq!(svg.matches("bits</title>").count(), 1 + 14);
        assert!(svg.contains("a &lt;b&gt; &amp; c: 7.000 bits"));
        assert_eq!(svg.matches("height=\"194.0\"").count(), 7);
        assert_eq!(svg.matches("height=\"97.0\"").count(), 7);
        assert!(svg.contains("layer 6, values: int8, 8.00 bits") && svg.ends_with("</svg>\n"));
    }
}
