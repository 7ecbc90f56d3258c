//! Commands that can be copied into a shell.

/// Returns a command in one line.
#[must_use]
pub fn command(words: impl IntoIterator<Item = impl AsRef<str>>) -> String {
    words.into_iter().map(|word| quoted(word.as_ref())).collect::<Vec<_>>().join(" ")
}

/// Returns one option per line with its values, so that the text can be copied after a program's name.
#[must_use]
pub fn lines(options: &[Vec<String>]) -> String {
    let lines = options.iter().map(command);
    lines.collect::<Vec<_>>().join(" \\\n")
}

/// Returns the word, in quotes if it needs them.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./:,=@%+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_where_a_shell_needs_it() {
        let options = [vec!["-chardev".to_owned(), "path=/run/a,,b".to_owned()], vec!["a b".to_owned()]];
        assert_eq!(lines(&options), "-chardev path=/run/a,,b \\\n'a b'");
        let words = [("", "''"), ("it's", r"'it'\''s'"), ("$HOME", "'$HOME'"), ("a\\b", "'a\\b'"), ("é", "'é'")];
        for (word, expected) in words {
            assert_eq!(quoted(word), expected);
        }
    }
}
