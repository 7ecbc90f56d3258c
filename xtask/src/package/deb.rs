//! Makes the package: its files, its control data, and the archive.

use super::run;
use crate::workspace;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Name of the package. The program and the service are called `sluice`.
const NAME: &str = "sluicegate";
/// Name and address for the package's control data. There is no public address yet, and `.invalid` says so.
const MAINTAINER: &str = "The Sluicegate developers <maintainers@sluicegate.invalid>";
/// Files of the repository: from, to, mode.
const FILES: &[(&str, &str, u32)] = &[
    ("contrib/systemd/sluice.service", "lib/systemd/system/sluice.service", 0o644),
    ("contrib/systemd/sluice.sysusers", "usr/lib/sysusers.d/sluice.conf", 0o644),
    ("contrib/systemd/sluice.tmpfiles", "usr/lib/tmpfiles.d/sluice.conf", 0o644),
    ("contrib/sluice.toml", "etc/sluice/sluice.toml", 0o644),
    ("contrib/debian/copyright", "usr/share/doc/sluicegate/copyright", 0o644),
    ("contrib/debian/lintian-overrides", "usr/share/lintian/overrides/sluicegate", 0o644),
    ("README.md", "usr/share/doc/sluicegate/README.md", 0o644),
    ("SECURITY.md", "usr/share/doc/sluicegate/SECURITY.md", 0o644),
    ("docs/service.md", "usr/share/doc/sluicegate/service.md", 0o644),
    ("docs/network.md", "usr/share/doc/sluicegate/network.md", 0o644),
    ("contrib/systemd/network.conf", "usr/share/doc/sluicegate/network.conf", 0o644),
    ("contrib/systemd/real-time.conf", "usr/share/doc/sluicegate/real-time.conf", 0o644),
    ("docs/host-file.md", "usr/share/doc/sluicegate/host-file.md", 0o644),
    ("examples/host.toml", "usr/share/doc/sluicegate/examples/host.toml", 0o644),
    ("examples/network.toml", "usr/share/doc/sluicegate/examples/network.toml", 0o644),
    ("contrib/debian/postinst", "DEBIAN/postinst", 0o755),
    ("contrib/debian/prerm", "DEBIAN/prerm", 0o755),
    ("contrib/debian/postrm", "DEBIAN/postrm", 0o755),
];
/// Completions: shell, file.
const COMPLETIONS: &[(&str, &str)] = &[
    ("bash", "usr/share/bash-completion/completions/sluice"),
    ("zsh", "usr/share/zsh/vendor-completions/_sluice"),
    ("fish", "usr/share/fish/vendor_completions.d/sluice.fish"),
];

/// Effort of the compression of a package.
#[derive(Clone, Copy)]
pub(super) enum Compression {
    Best,
    Fast,
}

impl Compression {
    fn level(self) -> &'static str {
        match self {
            Compression::Best => "-z9",
            Compression::Fast => "-z0",
        }
    }
}

/// Makes the package of this binary with this revision in the folder `out`, and returns its file.
pub(super) fn build(program: &Path, revision: u32, compression: Compression, out: &Path) -> Result<PathBuf, String> {
    fs::create_dir_all(out).map_err(failed(out))?;
    let folder = tempfile::tempdir_in(out).map_err(failed(out))?;
    let root = folder.path().join("root");
    let version = format!("{}-{revision}", env!("CARGO_PKG_VERSION"));
    for (from, to, mode) in FILES {
        place(&workspace::root().join(from), &root.join(to), *mode)?;
    }
    let installed = root.join("usr/bin/sluice");
    place(program, &installed, 0o755)?;
    run(Command::new("strip").arg(&installed))?;
    write_generated(program, &root)?;
    write_changelogs(&root, &version)?;
    write_control(&root, folder.path(), &version)?;
    let architecture = architecture()?;
    let file = out.join(format!("{NAME}_{version}_{architecture}.deb"));
    // The folders that this made are as open as the umask, and a package must not depend on that.
    run(Command::new("chmod").args(["-R", "u=rwX,go=rX"]).arg(&root))?;
    run(Command::new("dpkg-deb")
        .args(["--root-owner-group", "-Zxz", compression.level(), "--build"])
        .arg(&root)
        .arg(&file))?;
    Ok(file)
}

/// Writes manual pages and completions.
fn write_generated(program: &Path, root: &Path) -> Result<(), String> {
    let pages = root.join("usr/share/man/man1");
    fs::create_dir_all(&pages).map_err(failed(&pages))?;
    run(Command::new(program).arg("man").arg(&pages))?;
    for page in fs::read_dir(&pages).map_err(failed(&pages))? {
        compress(&page.map_err(failed(&pages))?.path())?;
    }
    for (shell, file) in COMPLETIONS {
        let script = run(Command::new(program).args(["completions", shell]))?;
        write(&root.join(file), &script)?;
    }
    Ok(())
}

fn write_changelogs(root: &Path, version: &str) -> Result<(), String> {
    let folder = root.join("usr/share/doc").join(NAME);
    place(&workspace::root().join("CHANGELOG.md"), &folder.join("changelog"), 0o644)?;
    compress(&folder.join("changelog"))?;
    let time = run(Command::new("git").args(["log", "-1", "--format=%cD"]).current_dir(workspace::root()))
        .or_else(|_| run(Command::new("date").arg("-R")))?;
    let entry = format!(
        "{NAME} ({version}) unstable; urgency=medium\n\n  * See changelog.gz for the changes of this version.\n\n -- {MAINTAINER}  \
         {time}"
    );
    let debian = folder.join("changelog.Debian");
    write(&debian, &entry)?;
    compress(&debian)
}

fn write_control(root: &Path, folder: &Path, version: &str) -> Result<(), String> {
    let architecture = architecture()?;
    // dpkg-shlibdeps looks for the source package that it is part of.
    write(&folder.join("debian/control"), &format!("Source: {NAME}\n\nPackage: {NAME}\nArchitecture: any\n"))?;
    let mut shlibdeps = Command::new("dpkg-shlibdeps");
    let depends = run(shlibdeps.arg("-O").arg(root.join("usr/bin/sluice")).current_dir(folder))?;
    let depends = depends.trim().strip_prefix("shlibs:Depends=").unwrap_or_default();
    let size: u64 = run(Command::new("du").args(["-sk", "--apparent-size"]).arg(root))?
        .split_whitespace()
        .next()
        .and_then(|size| size.parse().ok())
        .unwrap_or_default();
    let control = format!(
        "Package: {NAME}\nVersion: {version}\nArchitecture: {architecture}\nMaintainer: {MAINTAINER}\n\
         Installed-Size: {size}\nDepends: {depends}, init-system-helpers (>= 1.54)\nRecommends: systemd\n\
         Section: admin\nPriority: optional\n\
         Description: storage QoS daemon for virtual machine hosts\n \
         Sluicegate serves virtual disks to VMs over vhost-user-blk and NBD, and runs\n \
         one I/O scheduler in front of each shared device. It gives every VM a\n \
         reservation, a limit and a weight.\n"
    );
    write(&root.join("DEBIAN/control"), &control)?;
    write(&root.join("DEBIAN/conffiles"), "/etc/sluice/sluice.toml\n")?;
    let sums = "find usr lib etc -type f ! -path 'etc/*' -print0 | LC_ALL=C sort -z | xargs -0 md5sum";
    let sums = run(Command::new("sh").args(["-c", sums]).current_dir(root))?;
    write(&root.join("DEBIAN/md5sums"), &sums)
}

fn architecture() -> Result<String, String> {
    run(Command::new("dpkg").arg("--print-architecture")).map(|name| name.trim().to_owned())
}

/// Replaces a file by its compressed form, which is the same for the same content.
fn compress(file: &Path) -> Result<(), String> {
    run(Command::new("gzip").args(["-9n"]).arg(file)).map(drop)
}

fn write(file: &Path, text: &str) -> Result<(), String> {
    let folder = file.parent().expect("a file has a folder");
    fs::create_dir_all(folder).map_err(failed(folder))?;
    fs::write(file, text).map_err(failed(file))
}

fn place(from: &Path, to: &Path, mode: u32) -> Result<(), String> {
    let folder = to.parent().expect("a file has a folder");
    fs::create_dir_all(folder).map_err(failed(folder))?;
    fs::copy(from, to).map_err(failed(from))?;
    fs::set_permissions(to, fs::Permissions::from_mode(mode)).map_err(failed(to))
}

fn failed(path: &Path) -> impl Fn(std::io::Error) -> String + use<> {
    let path = path.display().to_string();
    move |error| format!("{path}: {error}")
}
