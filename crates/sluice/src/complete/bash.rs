//! Completion in bash of the value in `KEY=VALUE`.
//!
//! Readline breaks the command line at the characters of `COMP_WORDBREAKS`, one of which is `=`. So `set web policy=go` comes as five words, the last of
//! which is `go`, and answers replace only that. The script below puts the words together before it asks, and takes `policy=` off the answers.

use std::ffi::OsString;
use std::io::{Error, Write};
use std::path::Path;

use clap::Command;
use clap_complete::env;
use clap_complete::env::EnvCompleter;

/// Bash, with the script below.
pub(super) struct Bash;

/// Follows the script of the library, whose function it calls. An empty word behind `=` is the next argument: `weight= ` ends in a space.
const SCRIPT: &str = r#"
_complete_assignments_NAME() {
    local -a joined=()
    local at word index=0 before="" current="" is_glued=false
    for ((at = 0; at <= COMP_CWORD; at++)); do
        word="${COMP_WORDS[at]}"
        if ((at == COMP_CWORD)) && [[ "$word" != "=" ]]; then
            word="$2"
        fi
        if ((at > 1)) && [[ "$word" == "=" || "$before" == "=" && -n "$word" ]]; then
            current+="$word"
            is_glued=true
        else
            current="$word"
            is_glued=false
            index=${#joined[@]}
        fi
        joined[index]="$current"
        before="$word"
    done
    local -a COMP_WORDS=("${joined[@]}")
    local COMP_CWORD=$index
    _clap_complete_NAME "$1" "$current" "$3"
    if [[ $is_glued == true ]]; then
        COMPREPLY=("${COMPREPLY[@]#"${current%%=*}="}")
    fi
}
complete -o nospace -o bashdefault -F _complete_assignments_NAME BIN
"#;

impl EnvCompleter for Bash {
    fn name(&self) -> &'static str {
        env::Bash.name()
    }

    fn is(&self, name: &str) -> bool {
        env::Bash.is(name)
    }

    fn write_registration(
        &self,
        var: &str,
        name: &str,
        bin: &str,
        completer: &str,
        to: &mut dyn Write,
    ) -> Result<(), Error> {
        env::Bash.write_registration(var, name, bin, completer, to)?;
        to.write_all(SCRIPT.replace("NAME", &name.replace('-', "_")).replace("BIN", bin).as_bytes())
    }

    fn write_complete(
        &self,
        command: &mut Command,
        words: Vec<OsString>,
        folder: Option<&Path>,
        to: &mut dyn Write,
    ) -> Result<(), Error> {
        env::Bash.write_complete(command, words, folder, to)
    }
}
