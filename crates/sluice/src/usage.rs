//! The command line: its help, and what is said about wrong arguments.
//!
//! An error of the parser names what is wrong. What is added here says what to write: the remedy for a word of another program
//! (`near.rs`), and examples of the command (`examples.rs`), which its help and its manual page have too.

use std::error::Error as _;
use std::ffi::OsString;
use std::process::exit;

use clap::error::{ContextKind, ContextValue, Error, ErrorKind};
use clap::{Arg, ArgAction, Command, CommandFactory, FromArgMatches};

use crate::Cli;
use crate::output;

mod examples;
mod near;

/// Number of examples in an error.
const EXAMPLES_MAX: usize = 2;

/// Returns the command line with examples in each help.
pub(crate) fn command() -> Command {
    with_examples(Cli::command(), "")
}

fn with_examples(command: Command, path: &str) -> Command {
    let names: Vec<String> = command.get_subcommands().map(|inner| inner.get_name().to_owned()).collect();
    let command = names.into_iter().fold(command, |command, name| {
        let path = format!("{path} {name}");
        command.mut_subcommand(name, |inner| with_examples(inner, path.trim_start()))
    });
    let examples = examples_of(path).into_iter().map(|(line, what)| format!("\n  {line}\n      {what}"));
    command.after_help(format!("Examples:{}", examples.collect::<String>()))
}

/// Returns the examples of a command, each with what it does.
pub(crate) fn examples_of(path: &str) -> Vec<(&'static str, &'static str)> {
    examples::of(path)
}

/// Reads the arguments of this program. If they are wrong, says what to write, and ends the program.
pub(crate) fn parse() -> Cli {
    let words: Vec<OsString> = std::env::args_os().collect();
    read(&words).unwrap_or_else(|error| {
        if error.use_stderr() && error.kind() != ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
            output::message(explained(error, &words).trim_end());
            exit(2);
        }
        error.exit()
    })
}

/// Ends the program, because arguments do not go together.
pub(crate) fn wrong(text: &str) -> ! {
    output::message(format_args!("error: {text}"));
    exit(2)
}

fn read(words: &[OsString]) -> Result<Cli, Error> {
    let mut matches = command().try_get_matches_from(words)?;
    Cli::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut command()))
}

/// Returns the error with what to write.
fn explained(mut error: Error, words: &[OsString]) -> String {
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    let (at, mut path) = find(&command, words);
    let remedy = remedy(&error, &command, (at, &path));
    let is_remedied = remedy.is_some();
    if is_remedied {
        // What merely looks alike misleads then.
        let similar = [ContextKind::SuggestedSubcommand, ContextKind::SuggestedArg, ContextKind::SuggestedValue];
        similar.into_iter().chain([ContextKind::Suggested]).for_each(|kind| drop(error.remove(kind)));
    }
    // The most similar one is the last.
    if let Some(ContextValue::Strings(similar)) = error.get(ContextKind::SuggestedSubcommand) {
        path = format!("{path} {}", similar.last().map_or("", String::as_str)).trim().to_owned();
    }
    let text = error.render().to_string();
    let (text, end) = text.trim_end().split_once("\nFor more information").unwrap_or((&text, ""));
    let mut text = text.trim_end().to_owned();
    if let Some(remedy) = remedy {
        text += &format!("\n\nWrite: {remedy}");
    }
    let examples = relevant(&error, &path);
    // The examples of this command do not help if another one is meant.
    if !(examples.is_empty() || is_remedied && error.kind() == ErrorKind::InvalidSubcommand) {
        text += &format!("\n\nFor example:\n  {}", examples.join("\n  "));
    }
    if end.is_empty() { text } else { format!("{text}\n\nFor more information{end}") }
}

/// Finds the command that the words name, as far as they are known. Returns it, and the names that lead to it.
fn find<'a>(command: &'a Command, words: &[OsString]) -> (&'a Command, String) {
    let (mut at, mut path, mut is_after_option) = (command, Vec::new(), false);
    for word in words.iter().skip(1).map(|word| word.to_string_lossy()) {
        match at.find_subcommand(&*word) {
            _ if word.starts_with('-') => is_after_option = !word.contains('='),
            Some(inner) => {
                path.push(inner.get_name());
                (at, is_after_option) = (inner, false);
            }
            None if is_after_option => is_after_option = false,
            None => break,
        }
    }
    (at, path.join(" "))
}

/// Returns the options of a command in words, or only the one that was written before it.
fn options(command: &Command, word: &str) -> String {
    let own = || {
        command
            .get_arguments()
            .filter(|arg| arg.get_long().is_some() && !arg.is_global_set() && !arg.is_hide_set() && !is_help(arg))
    };
    if let Some(known) = own().find(|arg| arg.get_long() == word.strip_prefix("--")) {
        return format!("{known} after the command, as in {} {known}", command.get_bin_name().unwrap_or_default());
    }
    let names: Vec<String> = own().map(ToString::to_string).collect();
    if names.is_empty() {
        "the command without it".to_owned()
    } else {
        format!("one of its options: {}", names.join(", "))
    }
}

fn first_word(text: &str) -> &str {
    text.split([' ', ',', ':']).next().unwrap_or(text)
}

/// Whether it is `--help` or `--version`.
pub(crate) fn is_help(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::Help | ArgAction::Version)
}

/// Returns what to write instead of the word that the parser rejects.
fn remedy(error: &Error, command: &Command, (at, path): (&Command, &str)) -> Option<String> {
    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(word)) => Some(word.as_str()),
        _ => None,
    };
    match error.kind() {
        ErrorKind::InvalidSubcommand => {
            let word = context(ContextKind::InvalidSubcommand)?;
            let near = near::remedy(path, word).map(str::to_owned);
            let any = || near::remedy(path, "*").map(str::to_owned);
            let found = near.or_else(|| elsewhere(command, path, &word.to_lowercase())).or_else(any);
            let is_similar = error.get(ContextKind::SuggestedSubcommand).is_some();
            let others = || format!("one of the commands that `{} --help` lists", format!("sluice {path}").trim_end());
            found.or_else(|| (!is_similar).then(others))
        }
        ErrorKind::UnknownArgument => {
            let word = context(ContextKind::InvalidArg)?;
            // They resemble many mistyped options, and are not meant.
            let similar = context(ContextKind::SuggestedArg).filter(|known| !["--version", "--help"].contains(known));
            let surplus = || near::remedy_of_surplus(path, word).map(str::to_owned);
            let any = || surplus().or_else(|| word.starts_with('-').then(|| options(at, word)));
            // An option that this command does not have is no remedy.
            let has = |option: &str| at.get_arguments().any(|arg| arg.get_long() == Some(option));
            let is_had = |remedy: &&str| remedy.strip_prefix("--").is_none_or(|rest| has(first_word(rest)));
            let near = near::remedy(path, word).filter(is_had).map(str::to_owned);
            near.or_else(|| if similar.is_some() { None } else { any() })
        }
        ErrorKind::InvalidValue | ErrorKind::ValueValidation => {
            // Most parsers of values say what to write, and the one of numbers does not.
            let is_told = error.source().is_some_and(|error| error.to_string().contains("write "));
            let is_listed =
                matches!(error.get(ContextKind::ValidValue), Some(ContextValue::Strings(all)) if !all.is_empty());
            let wrong = context(ContextKind::InvalidArg).filter(|_| !is_told && !is_listed)?;
            let argument = at.get_arguments().find(|known| known.to_string() == wrong)?;
            Some(format!("{wrong}: {}", argument.get_help()?))
        }
        ErrorKind::ArgumentConflict => Some(match error.get(ContextKind::PriorArg) {
            Some(ContextValue::String(prior)) if Some(prior.as_str()) == context(ContextKind::InvalidArg) => {
                "it once".to_owned()
            }
            _ => "only one of them".to_owned(),
        }),
        ErrorKind::TooManyValues => Some("each value with its own option".to_owned()),
        ErrorKind::InvalidUtf8 => Some("names and values in UTF-8".to_owned()),
        _ => None,
    }
}

/// Finds a command of this name, or its plural, that is not where it was written.
fn elsewhere(command: &Command, path: &str, word: &str) -> Option<String> {
    let is_it = |known: &&Command| known.get_name() == word || known.get_name() == format!("{word}s");
    if let Some(known) = command.get_subcommands().find(is_it) {
        return Some(format!("sluice {}", known.get_name()));
    }
    // Those next to it first.
    let (here, others): (Vec<_>, Vec<_>) = command.get_subcommands().partition(|verb| verb.get_name() == path);
    let all = here.into_iter().chain(others);
    let mut below = all.flat_map(|verb| verb.get_subcommands().map(move |inner| (verb.get_name(), inner)));
    let (verb, inner) = below.find(|(_, inner)| is_it(inner))?;
    Some(format!("sluice {verb} {}", inner.get_name()))
}

/// Returns the examples of a command that have the option of the error, or otherwise the first ones.
fn relevant(error: &Error, path: &str) -> Vec<&'static str> {
    let option = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(option)) => option.split([' ', '=']).next().filter(|option| option.starts_with('-')),
        _ => None,
    };
    let all: Vec<&str> = examples_of(path).into_iter().map(|(line, _)| line).collect();
    let with: Vec<&str> =
        all.iter().copied().filter(|line| option.is_some_and(|option| line.contains(option))).collect();
    let mut examples = if with.is_empty() { all } else { with };
    examples.truncate(EXAMPLES_MAX);
    examples
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the words of a line as a shell has them.
    fn words(line: &str) -> Vec<OsString> {
        let script = format!("printf '%s\\n' {line}");
        let shell = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
        String::from_utf8(shell.stdout).unwrap().lines().map(OsString::from).collect()
    }

    fn each(command: &Command, path: &str, check: &mut impl FnMut(&Command, &str)) {
        check(command, path);
        for inner in command.get_subcommands().filter(|inner| inner.get_name() != "help") {
            each(inner, format!("{path} {}", inner.get_name()).trim_start(), check);
        }
    }

    #[test]
    fn every_command_has_examples_and_they_are_right() {
        each(&Cli::command(), "", &mut |_, of| {
            assert!(!examples_of(of).is_empty(), "'{of}' has no example");
            for (line, _) in examples_of(of) {
                let words = words(line);
                if let Err(error) = read(&words) {
                    panic!("{line}: {error}");
                }
                assert!(find(&Cli::command(), &words).1.starts_with(of), "{line} is no example of {of}");
            }
        });
    }

    #[test]
    fn what_to_write_instead_is_right() {
        let verbs: Vec<String> = Cli::command().get_subcommands().map(|verb| verb.get_name().to_owned()).collect();
        for (words, remedy) in near::NEAR {
            let named = remedy.split("sluice ").skip(1).filter_map(|part| part.split([' ', ',', ';']).next());
            for verb in named.filter(|verb| !verb.starts_with('-')) {
                assert!(verbs.iter().any(|known| known == verb), "{remedy}: there is no command {verb}");
            }
            let taken = words.iter().find(|word| verbs.iter().any(|known| known == *word));
            assert_eq!(taken, None, "it is a command itself");
        }
    }
}
