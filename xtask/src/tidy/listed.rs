//! Test files that cargo does not build. A package with `autotests = false` links its tests once, from a file that lists the others as
//! modules, and one that nobody lists would never run.

use super::{Source, Violation};

/// Checks the files in the folders `tests` of packages. `files`: all Rust files and manifests.
pub(super) fn check(files: &[Source<'_>]) -> Vec<Violation> {
    files.iter().filter(|file| !is_built(file, files)).map(unlisted).collect()
}

fn unlisted(file: &Source<'_>) -> Violation {
    file.violation(1, "no test program has this file, so its tests never run; list it as a module in `all.rs`")
}

fn is_built(file: &Source<'_>, files: &[Source<'_>]) -> bool {
    let Some((package, name)) = file.path.strip_suffix(".rs").and_then(|path| path.rsplit_once("/tests/")) else {
        return true;
    };
    // A folder is a module, or a program of its own, by one of these names.
    let folder = name.strip_suffix("/main").or_else(|| name.strip_suffix("/mod"));
    let name = match name.contains('/') {
        true => match folder.filter(|folder| !folder.contains('/')) {
            Some(folder) => folder,
            None => return true,
        },
        false => name,
    };
    let (manifest, folder) = (format!("{package}/Cargo.toml"), format!("{package}/tests/"));
    let is_named = |other: &Source<'_>| match other.path.strip_prefix(&folder) {
        Some(inside) => !inside.contains('/') && other.text.lines().any(|line| line == format!("mod {name};")),
        None => {
            let paths = [format!("path = \"tests/{name}.rs\""), format!("path = \"tests/{name}/main.rs\"")];
            other.path == manifest && paths.iter().any(|path| other.text.contains(path))
        }
    };
    // Cargo builds each file of a package that does not say otherwise, and a folder `tests` in `src` belongs to a module.
    let links_once = |other: &Source<'_>| other.path == manifest && other.text.contains("autotests = false");
    !files.iter().any(links_once) || files.iter().any(is_named)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_tests_that_no_program_lists_is_found() {
        let source = |path, text| Source { path, text };
        let all = source("a/tests/all.rs", "mod one;\nmod common;\n");
        let others =
            [source("a/tests/one.rs", ""), source("a/tests/two.rs", "// mod two;"), source("a/tests/two/x.rs", "")];
        let folders = [source("a/tests/three/main.rs", ""), source("a/tests/common/mod.rs", "")];
        let mut files = vec![source("a/Cargo.toml", "autotests = false\npath = \"tests/all.rs\""), all];
        files.extend(others);
        files.extend(folders);
        assert_eq!(
            check(&files).iter().map(|violation| &*violation.path).collect::<Vec<_>>(),
            ["a/tests/two.rs", "a/tests/three/main.rs"]
        );
        files[0].text = "";
        assert_eq!(check(&files), []);
    }
}
