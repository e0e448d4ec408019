//! Colours of states, where standard output is a terminal that wants some: red for what is broken, yellow for what changes, green for what works.

use anstyle::{AnsiColor, Style};

const BROKEN: [&str; 11] = [
    "differs",
    "dropped",
    "ejected",
    "gone",
    "never",
    "no answer",
    "not known",
    "not running",
    "refused",
    "stale",
    "unhealthy",
];
const CHANGING: [&str; 9] = [
    "behind",
    "draining",
    "maintenance",
    "no report",
    "not listed yet",
    "not ready",
    "starting",
    "terminating",
    "unready",
];
const WORKING: [&str; 6] = ["active", "fresh", "healthy and ready", "running", "same", "sent to"];
/// Lines of `status` and `explain` that say a state.
const LABELS: [&str; 4] = ["Agent:", "Health:", "Source:", "RESULT"];

/// Whether standard output takes colours: a terminal does, unless `NO_COLOR` or `TERM` says otherwise.
fn is_wanted() -> bool {
    anstream::AutoStream::choice(&std::io::stdout()) != anstream::ColorChoice::Never
}

/// A table, the cells of its column of states in colours.
pub(super) fn states(table: String) -> String {
    if is_wanted() { painted_states(&table) } else { table }
}

/// Lines of a label and a sentence, the words for states in colours.
pub(super) fn labelled(text: String) -> String {
    if is_wanted() { painted_labels(&text) } else { text }
}

fn painted_states(table: &str) -> String {
    let (mut out, mut lines) = (String::new(), table.split_inclusive('\n'));
    let header = lines.next().unwrap_or_default();
    out += header;
    let column = state_column(header);
    let mut is_over = column.is_none();
    for line in lines {
        // What follows an empty line is no row.
        is_over |= line.trim().is_empty();
        let (start, end) = column.unwrap_or_default();
        let cell = line.get(start..end.min(line.len())).filter(|_| !is_over).map(str::trim);
        match cell.and_then(|cell| Some((cell, word(cell)?.2))) {
            Some((cell, colour)) => {
                out += &line[..start];
                out += &in_colour(cell, colour);
                out += &line[start + cell.len()..];
            }
            None => out += line,
        }
    }
    out
}

/// Where the column of states begins, and where the next one does.
fn state_column(header: &str) -> Option<(usize, usize)> {
    let mut columns = header.split_whitespace().scan(0, |from, name| {
        let start = *from + header[*from..].find(name)?;
        *from = start + name.len();
        Some((start, name))
    });
    let (start, _) = columns.find(|(_, name)| name.ends_with("STATE"))?;
    Some((start, columns.next().map_or(usize::MAX, |(next, _)| next)))
}

fn painted_labels(text: &str) -> String {
    let paint = |line: &str| {
        let label = LABELS.iter().find(|label| line.starts_with(*label))?;
        let value = &line[label.len()..];
        let (at, word, colour) = word(value)?;
        Some(format!("{label}{}{}{}", &value[..at], in_colour(word, colour), &value[at + word.len()..]))
    };
    text.split_inclusive('\n').map(|line| paint(line).unwrap_or_else(|| line.to_owned())).collect()
}

fn in_colour(text: &str, colour: AnsiColor) -> String {
    let style = Style::new().fg_color(Some(colour.into()));
    format!("{style}{text}{style:#}")
}

/// The word for a state in the text, the worst one first: its place, itself, and its colour.
fn word(text: &str) -> Option<(usize, &'static str, AnsiColor)> {
    let all = [(&BROKEN[..], AnsiColor::Red), (&CHANGING, AnsiColor::Yellow), (&WORKING, AnsiColor::Green)];
    let mut words = all.into_iter().flat_map(|(words, colour)| words.iter().map(move |word| (*word, colour)));
    words.find_map(|(word, colour)| Some((place(text, word)?, word, colour)))
}

/// Where it is as a word of its own, and no part of a name.
fn place(text: &str, word: &str) -> Option<usize> {
    let is_of_name =
        |letter: Option<char>| letter.is_some_and(|letter| letter.is_alphanumeric() || "-_./".contains(letter));
    let mut places = text.match_indices(word).map(|(at, _)| at);
    places.find(|at| {
        let (before, after) = (text[..*at].chars().next_back(), text[at + word.len()..].chars().next());
        !is_of_name(before) && !is_of_name(after)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const RED: &str = "\x1b[31m";
    const YELLOW: &str = "\x1b[33m";
    const GREEN: &str = "\x1b[32m";
    const END: &str = "\x1b[0m";

    #[test]
    fn the_column_of_states_alone_is_coloured() {
        let table = "\
ADDRESS        SERVICE  STATE            FLOWS
10.1.0.2:8080  gone     active           2
10.1.0.3:8080  stale    draining         1
10.1.0.4:8080  active   active, ejected  0
";
        let expected = format!(
            "\
ADDRESS        SERVICE  STATE            FLOWS
10.1.0.2:8080  gone     {GREEN}active{END}           2
10.1.0.3:8080  stale    {YELLOW}draining{END}         1
10.1.0.4:8080  active   {RED}active, ejected{END}  0
"
        );
        assert_eq!(painted_states(table), expected);
        let fleet = "NODE  STATE\nsame  same\nn2    no answer\n\nn2: no answer: stale\n";
        let expected =
            format!("NODE  STATE\nsame  {GREEN}same{END}\nn2    {RED}no answer{END}\n\nn2: no answer: stale\n");
        assert_eq!(painted_states(fleet), expected);
        for text in ["", "NAMESPACE  SERVICE\ndemo       gone\n", "1 nodes in 1.3 s: 1 same\n"] {
            assert_eq!(painted_states(text), text);
        }
    }

    #[test]
    fn one_word_of_a_sentence_is_coloured() {
        let text = "\
Agent:         running, pid 1, node stale-1
Source:        kube https://gone:443, fresh.x fresh
Last error:    gone
RESULT        refused (refused_no_endpoint)
";
        let expected = format!(
            "\
Agent:         {GREEN}running{END}, pid 1, node stale-1
Source:        kube https://gone:443, fresh.x {GREEN}fresh{END}
Last error:    gone
RESULT        {RED}refused{END} (refused_no_endpoint)
"
        );
        assert_eq!(painted_labels(text), expected);
    }
}
