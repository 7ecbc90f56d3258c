//! Programs of other projects on this machine.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// A program and its Debian package.
pub type Program = (&'static str, &'static str);

/// Returns the folders of programs, with those of administration programs, which users other than root may not have in their `PATH`.
pub fn path() -> OsString {
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    path.push(":/usr/local/sbin:/usr/sbin:/sbin");
    path
}

/// Returns the path of a program.
pub fn find(name: &str) -> Option<PathBuf> {
    std::env::split_paths(&path()).map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// Returns what to install if some programs are missing.
pub fn missing(programs: &[Program]) -> Option<String> {
    let missing: Vec<&Program> = programs.iter().filter(|(name, _)| find(name).is_none()).collect();
    if missing.is_empty() {
        return None;
    }
    let names: Vec<&str> = missing.iter().map(|(name, _)| *name).collect();
    let mut packages: Vec<&str> = missing.iter().map(|(_, package)| *package).collect();
    packages.dedup();
    Some(format!("{} not installed; on Debian: apt-get install {}", are(&names), packages.join(" ")))
}

fn are(names: &[&str]) -> String {
    format!("{} {}", names.join(", "), if names.len() == 1 { "is" } else { "are" })
}

/// Returns a command that reads nothing from the terminal.
pub fn command(name: &str) -> Command {
    let mut command = Command::new(find(name).unwrap_or_else(|| name.into()));
    command.stdin(Stdio::null());
    command
}

/// Runs a command to its end. Returns its standard output.
///
/// # Errors
/// The program cannot be started, or it fails: then with the text that it has written to standard error.
pub fn output(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| format!("Cannot start {name}: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(format!("{name} failed: {}", String::from_utf8_lossy(&output.stderr).trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_what_to_install() {
        assert_eq!(missing(&[("sh", "dash")]), None);
        let text = missing(&[("sh", "dash"), ("no-such-qemu", "qemu"), ("no-such-image", "qemu")]).unwrap();
        assert_eq!(text, "no-such-qemu, no-such-image are not installed; on Debian: apt-get install qemu");
        let failed = output(command("sh").args(["-c", "echo no >&2; exit 3"])).unwrap_err();
        assert!(failed.ends_with("sh failed: no"), "{failed}");
    }
}
