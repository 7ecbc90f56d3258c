//! Colours and symbols. No state is shown by a colour alone.

use ratatui::style::{Color, Modifier, Style};

/// Colours and symbols of a terminal.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Theme {
    colour: bool,
    /// Symbols of a bar, see [`super::band`].
    pub(crate) full: char,
    pub(crate) unused: char,
    pub(crate) room: char,
    pub(crate) reservation: char,
    pub(crate) above: char,
}

impl Theme {
    /// ASCII without colours.
    pub(crate) fn plain() -> Theme {
        Theme { colour: false, full: '#', unused: '-', room: '.', reservation: '|', above: '>' }
    }

    /// The theme for this environment: colours unless `NO_COLOR` is set, and other symbols than ASCII if the locale is UTF-8.
    pub(crate) fn of_environment(variable: impl Fn(&str) -> Option<String>) -> Theme {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(set).unwrap_or_default().to_lowercase();
        let plain = Theme { colour: set("NO_COLOR").is_none(), ..Theme::plain() };
        if locale.contains("utf-8") || locale.contains("utf8") {
            Theme { full: '█', unused: '╌', room: '·', reservation: '┃', above: '»', ..plain }
        } else {
            plain
        }
    }

    fn coloured(&self, colour: Color) -> Style {
        if self.colour { Style::new().fg(colour) } else { Style::new() }
    }

    /// A broken promise, or a device that does not serve.
    pub(crate) fn broken(&self) -> Style {
        self.coloured(Color::Red).add_modifier(Modifier::BOLD)
    }

    /// A promise that is kept.
    pub(crate) fn kept(&self) -> Style {
        self.coloured(Color::Green)
    }

    pub(crate) fn device(&self) -> Style {
        self.coloured(Color::Cyan).add_modifier(Modifier::BOLD)
    }

    pub(crate) fn title(&self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    /// Headers of columns, and the selected row.
    pub(crate) fn selected(&self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_color_and_the_locale_are_respected() {
        let of = |set: &[(&str, &str)]| {
            Theme::of_environment(|name| set.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned()))
        };
        assert_eq!(of(&[("NO_COLOR", "1"), ("LANG", "C")]), Theme::plain());
        let utf8 = of(&[("LC_ALL", ""), ("LANG", "de_DE.UTF-8"), ("NO_COLOR", "")]);
        assert_eq!((utf8.full, utf8.colour), ('█', true), "an empty variable is as one that is not set");
        assert_eq!(of(&[("LC_ALL", "C"), ("LANG", "en_GB.UTF-8")]).full, '#');
    }
}
