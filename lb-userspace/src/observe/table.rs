//! Text in aligned columns.

use comfy_table::{ContentArrangement, Table, presets};

/// Columns two spaces apart, no lines, no blanks at the end of a line; as wide as the text, whatever the terminal.
pub fn aligned(header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled).set_header(header);
    for row in rows {
        table.add_row(row);
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table.trim_fmt() + "\n"
}

/// `address:port`, with brackets around an IPv6 address.
pub fn place(address: std::net::IpAddr, port: u16) -> String {
    std::net::SocketAddr::new(address, port).to_string()
}

/// The text, or a dash where there is none.
pub fn or_dash(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "-".into(), |value| value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_without_trailing_blanks() {
        let rows = [vec!["a".into(), "long one".into()], vec!["bcd".into(), String::new()]];
        assert_eq!(aligned(&["X", "Y"], rows), "X    Y\na    long one\nbcd\n");
    }

    #[test]
    fn ipv6_has_brackets() {
        assert_eq!(place("fd00::1".parse().unwrap(), 80), "[fd00::1]:80");
        assert_eq!(place("10.0.0.1".parse().unwrap(), 80), "10.0.0.1:80");
    }
}
