//! Kernel modules and their dependencies, in load order.

use std::path::{Path, PathBuf};

/// Modules that every guest needs, in addition to what is built into Debian's kernel for virtual machines.
pub(crate) const WANTED: [&str; 4] = ["virtio_pci", "virtio_console", "virtio_blk", "virtio_net"];

/// Name and content of a module.
pub(crate) type Module = (String, Vec<u8>);

/// Returns these modules of the kernel that was unpacked into `root`, and those that they need.
pub(crate) fn load_order(root: &Path, wanted: &[&str]) -> Vec<Module> {
    let mut files = Vec::new();
    walk(&root.join("lib/modules"), &mut files);
    let mut order = Vec::new();
    wanted.iter().for_each(|name| visit(name, &files, &mut order));
    order
}

fn visit(name: &str, files: &[PathBuf], order: &mut Vec<Module>) {
    if order.iter().any(|(known, _)| known == name) {
        return;
    }
    let named = |file: &&PathBuf| stem(file).as_deref() == Some(name);
    let file = files.iter().find(named).unwrap_or_else(|| panic!("the kernel has no module {name}"));
    let content = std::fs::read(file).unwrap();
    for needed in depends(&content) {
        visit(&needed, files, order);
    }
    order.push((name.to_owned(), content));
}

/// Returns the names in `depends=` of a module's description.
fn depends(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(at) = module.windows(KEY.len()).position(|window| window == KEY) else { return Vec::new() };
    let value = module[at + KEY.len()..].split(|byte| *byte == 0).next().unwrap_or_default();
    let names = std::str::from_utf8(value).expect("names are ASCII").split(',');
    names.filter(|name| !name.is_empty()).map(canonical).collect()
}

fn stem(file: &Path) -> Option<String> {
    Some(canonical(file.file_name()?.to_str()?.strip_suffix(".ko")?))
}

/// Replaces `-`, because file names and descriptions use `-` and `_` inconsistently.
fn canonical(name: &str) -> String {
    name.replace('-', "_")
}

fn walk(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in folder.read_dir().unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() && !path.is_symlink() {
            true => walk(&path, files),
            false => files.push(path),
        }
    }
}
