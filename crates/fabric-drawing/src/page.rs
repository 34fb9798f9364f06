//! What all SVG drawings share: fonts, colours, heading, and XML escaping.

use std::fmt::{self, Write};

/// Space between the edge of a drawing and its contents.
pub(crate) const MARGIN: f32 = 48.0;
/// Height of the title and the subtitle.
pub(crate) const TITLE_HEIGHT: f32 = 84.0;

pub(crate) const BACKGROUND: &str = "#fbfaf7";
pub(crate) const INK: &str = "#2b323c";
pub(crate) const MUTED: &str = "#7b8490";

const TITLE_SIZE: f32 = 23.0;
const SUBTITLE_SIZE: f32 = 13.0;

/// Approximate width of a character relative to the font size, for the fonts that browsers use for `sans-serif`.
const CHARACTER_WIDTH: f32 = 0.57;

/// Starts an SVG document of this size with background, title and subtitle. The caller closes it with `</svg>`.
pub(crate) fn write_head(
    svg: &mut String,
    (width, height): (f32, f32),
    title: &str,
    subtitle: &str,
) -> fmt::Result {
    writeln!(
        svg,
        r#"<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0}" height="{height:.0}" viewBox="0 0 {width:.0} {height:.0}" font-family="Inter, 'Helvetica Neue', 'DejaVu Sans', Arial, sans-serif">"#
    )?;
    writeln!(svg, "<title>{}</title>", Escaped(title))?;
    writeln!(svg, r#"<rect width="100%" height="100%" fill="{BACKGROUND}"/>"#)?;
    writeln!(
        svg,
        r#"<text x="{MARGIN}" y="50" font-size="{TITLE_SIZE}" font-weight="600" fill="{INK}">{}</text>"#,
        Escaped(title)
    )?;
    writeln!(
        svg,
        r#"<text x="{MARGIN}" y="74" font-size="{SUBTITLE_SIZE}" fill="{MUTED}">{}</text>"#,
        Escaped(subtitle)
    )
}

/// Approximate width of the heading.
pub(crate) fn head_width(title: &str, subtitle: &str) -> f32 {
    text_width(title, TITLE_SIZE).max(text_width(subtitle, SUBTITLE_SIZE))
}

/// Approximate width of a text.
pub(crate) fn text_width(text: &str, size: f32) -> f32 {
    text.chars().count() as f32 * CHARACTER_WIDTH * size
}

/// Displays a text escaped for XML; characters that XML does not allow become blanks.
#[derive(Debug)]
pub(crate) struct Escaped<'a>(pub &'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => f.write_char(' ')?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}
