//! An XML tree whose text and attribute values are always escaped.

use std::fmt::Write;

use quick_xml::escape::escape;

/// An XML element.
#[derive(Clone, Debug)]
pub struct Element {
    name: &'static str,
    attributes: Vec<(&'static str, String)>,
    text: String,
    children: Vec<Element>,
}

/// An element without attributes and content.
pub fn element(name: &'static str) -> Element {
    Element { name, attributes: Vec::new(), text: String::new(), children: Vec::new() }
}

impl Element {
    /// Adds an attribute.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl ToString) -> Self {
        self.attributes.push((name, value.to_string()));
        self
    }

    /// Sets the text.
    #[must_use]
    pub fn text(mut self, text: impl ToString) -> Self {
        self.text = text.to_string();
        self
    }

    /// Adds a child element.
    #[must_use]
    pub fn child(mut self, child: Element) -> Self {
        self.children.push(child);
        self
    }

    /// Adds child elements.
    #[must_use]
    pub fn children(mut self, children: impl IntoIterator<Item = Element>) -> Self {
        self.children.extend(children);
        self
    }

    /// Writes the element with one element per line.
    pub fn to_xml(&self) -> String {
        let mut out = String::new();
        self.write(0, &mut out);
        out
    }

    fn write(&self, depth: usize, out: &mut String) {
        let (indent, name) = ("  ".repeat(depth), self.name);
        out.push_str(&indent);
        out.push('<');
        out.push_str(name);
        for (name, value) in &self.attributes {
            write!(out, " {name}='{}'", escape(value.as_str())).expect("writing to a String does not fail");
        }
        if self.children.is_empty() && self.text.is_empty() {
            out.push_str("/>\n");
            return;
        }
        out.push('>');
        out.push_str(&escape(self.text.as_str()));
        if !self.children.is_empty() {
            out.push('\n');
            for child in &self.children {
                child.write(depth + 1, out);
            }
            out.push_str(&indent);
        }
        out.push_str("</");
        out.push_str(name);
        out.push_str(">\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_escaped() {
        let hostile = "a' onload='b' <c>&amp;\"";
        let xml = element("title").with("label", hostile).text(hostile).to_xml();
        assert_eq!(xml.matches('<').count(), 2, "{xml}");
        assert_eq!(xml.matches('\'').count(), 2, "{xml}");
    }
}
