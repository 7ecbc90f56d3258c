//! Makes a package: its files, its control data, and the archive.

use super::run;
use crate::workspace;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A package.
pub(super) struct Package {
    pub(super) name: &'static str,
    /// The programs that it installs.
    programs: &'static [&'static str],
    /// The program that writes its manual pages and completions.
    writer: Option<&'static str>,
    /// Manual pages of programs that are described in another page: page, the other one.
    links: &'static [(&'static str, &'static str)],
    /// Files of the repository: from, to, mode.
    files: &'static [(&'static str, &'static str, u32)],
    /// Folder of the repository with manual pages, and where its pages go.
    pages: &'static [(&'static str, &'static str)],
    /// Files that an operator changes.
    conffiles: &'static [&'static str],
    /// Completions: shell, file.
    completions: &'static [(&'static str, &'static str)],
    /// Packages that it needs besides libraries.
    depends: &'static str,
    recommends: &'static str,
    description: &'static str,
}

/// The package that serves VMs. The command and the service are called `sluice`.
pub(super) const SLUICEGATE: Package = Package {
    name: "sluicegate",
    programs: &["sluice", "sluiced"],
    writer: Some("sluice"),
    links: &[("sluiced", "sluice-serve")],
    files: FILES,
    pages: &[("docs/how-to", "usr/share/doc/sluicegate/how-to")],
    conffiles: &["/etc/sluice/sluice.toml"],
    completions: COMPLETIONS,
    depends: "init-system-helpers (>= 1.54)",
    recommends: "systemd",
    description: "storage QoS daemon for virtual machine hosts\n \
         Sluicegate serves virtual disks to VMs over vhost-user-blk and NBD, and runs\n \
         one I/O scheduler in front of each shared device. It gives every VM a\n \
         reservation, a limit and a weight.\n",
};

/// The package of `sluice sim`, `sluice reproduce` and `sluice advise`, which no VM needs.
pub(super) const LABORATORY: Package = Package {
    name: "sluicegate-lab",
    programs: &["sluice-lab"],
    writer: None,
    links: &[("sluice-lab", "sluice-sim")],
    files: &[
        ("contrib/debian/copyright", "usr/share/doc/sluicegate-lab/copyright", 0o644),
        ("contrib/debian/lab.lintian-overrides", "usr/share/lintian/overrides/sluicegate-lab", 0o644),
    ],
    pages: &[],
    conffiles: &[],
    completions: &[],
    depends: "sluicegate (= ${version})",
    recommends: "",
    description: "simulator and paper figures of the Sluicegate storage QoS daemon\n \
         The laboratory runs the schedulers of Sluicegate on modelled devices: it\n \
         simulates a scenario, reproduces the figures of five papers, and advises\n \
         which schedulers suit a workload.\n",
};

/// Name and address for the package's control data. There is no public address yet, and `.invalid` says so.
const MAINTAINER: &str = "The Sluicegate developers <maintainers@sluicegate.invalid>";
const FILES: &[(&str, &str, u32)] = &[
    ("contrib/systemd/sluice.service", "lib/systemd/system/sluice.service", 0o644),
    ("contrib/systemd/sluicegate-ui.service", "lib/systemd/system/sluicegate-ui.service", 0o644),
    ("contrib/systemd/sluice.sysusers", "usr/lib/sysusers.d/sluice.conf", 0o644),
    ("contrib/systemd/sluice.tmpfiles", "usr/lib/tmpfiles.d/sluice.conf", 0o644),
    ("contrib/sluice.toml", "etc/sluice/sluice.toml", 0o644),
    ("contrib/debian/copyright", "usr/share/doc/sluicegate/copyright", 0o644),
    ("contrib/debian/lintian-overrides", "usr/share/lintian/overrides/sluicegate", 0o644),
    ("README.md", "usr/share/doc/sluicegate/README.md", 0o644),
    ("SECURITY.md", "usr/share/doc/sluicegate/SECURITY.md", 0o644),
    ("docs/service.md", "usr/share/doc/sluicegate/service.md", 0o644),
    ("docs/network.md", "usr/share/doc/sluicegate/network.md", 0o644),
    ("contrib/systemd/own-user.conf", "usr/share/sluice/own-user.conf", 0o644),
    ("contrib/apparmor/usr.bin.sluiced", "usr/share/sluice/apparmor/usr.bin.sluiced", 0o644),
    ("contrib/systemd/network.conf", "usr/share/doc/sluicegate/network.conf", 0o644),
    ("contrib/systemd/real-time.conf", "usr/share/doc/sluicegate/real-time.conf", 0o644),
    ("docs/host-file.md", "usr/share/doc/sluicegate/host-file.md", 0o644),
    ("docs/monitoring.md", "usr/share/doc/sluicegate/monitoring.md", 0o644),
    ("docs/vhost-user.md", "usr/share/doc/sluicegate/vhost-user.md", 0o644),
    ("contrib/prometheus/sluice.rules.yml", "usr/share/sluice/prometheus/sluice.rules.yml", 0o644),
    ("contrib/grafana/sluice.json", "usr/share/sluice/grafana/sluice.json", 0o644),
    ("examples/host.toml", "usr/share/doc/sluicegate/examples/host.toml", 0o644),
    ("examples/network.toml", "usr/share/doc/sluicegate/examples/network.toml", 0o644),
    ("contrib/debian/postinst", "DEBIAN/postinst", 0o755),
    ("contrib/debian/prerm", "DEBIAN/prerm", 0o755),
    ("contrib/debian/postrm", "DEBIAN/postrm", 0o755),
];
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

/// Makes a package with this revision of the programs in the folder `programs`, and returns its file in the folder `out`.
pub(super) fn build(
    package: &Package,
    programs: &Path,
    revision: u32,
    compression: Compression,
    out: &Path,
) -> Result<PathBuf, String> {
    fs::create_dir_all(out).map_err(failed(out))?;
    let folder = tempfile::tempdir_in(out).map_err(failed(out))?;
    let root = folder.path().join("root");
    let version = format!("{}-{revision}", env!("CARGO_PKG_VERSION"));
    for (from, to, mode) in package.files {
        place(&workspace::root().join(from), &root.join(to), *mode)?;
    }
    for (from, to) in package.pages {
        let from = workspace::root().join(from);
        for page in fs::read_dir(&from).map_err(failed(&from))? {
            let page = page.map_err(failed(&from))?;
            place(&page.path(), &root.join(to).join(page.file_name()), 0o644)?;
        }
    }
    for program in package.programs {
        let installed = root.join("usr/bin").join(program);
        place(&programs.join(program), &installed, 0o755)?;
        run(Command::new("strip").arg(&installed))?;
    }
    write_pages(package, programs, &root)?;
    write_changelogs(package, &root, &version)?;
    write_control(package, &root, folder.path(), &version)?;
    let file = out.join(format!("{}_{version}_{}.deb", package.name, architecture()?));
    // The folders that this made are as open as the umask, and a package must not depend on that.
    run(Command::new("chmod").args(["-R", "u=rwX,go=rX"]).arg(&root))?;
    run(Command::new("dpkg-deb")
        .args(["--root-owner-group", "-Zxz", compression.level(), "--build"])
        .arg(&root)
        .arg(&file))?;
    Ok(file)
}

/// Writes manual pages, each into the folder of its section, and completions.
fn write_pages(package: &Package, programs: &Path, root: &Path) -> Result<(), String> {
    let manual = root.join("usr/share/man");
    let pages = manual.join("man1");
    for (page, other) in package.links {
        write(&pages.join(format!("{page}.1")), &format!(".so man1/{other}.1\n"))?;
    }
    if let Some(program) = package.writer.map(|program| programs.join(program)) {
        run(Command::new(&program).arg("man").arg(&pages))?;
        let (page, files) = (pages.join("sluice.toml.5"), manual.join("man5"));
        place(&page, &files.join("sluice.toml.5"), 0o644)?;
        fs::remove_file(&page).map_err(failed(&page))?;
        compress(&files.join("sluice.toml.5"))?;
        for (shell, file) in package.completions {
            let script = run(Command::new(&program).args(["completions", shell]))?;
            write(&root.join(file), &script)?;
        }
    }
    for page in fs::read_dir(&pages).map_err(failed(&pages))? {
        compress(&page.map_err(failed(&pages))?.path())?;
    }
    Ok(())
}

fn write_changelogs(package: &Package, root: &Path, version: &str) -> Result<(), String> {
    let name = package.name;
    let folder = root.join("usr/share/doc").join(name);
    place(&workspace::root().join("CHANGELOG.md"), &folder.join("changelog"), 0o644)?;
    compress(&folder.join("changelog"))?;
    let time = run(Command::new("git").args(["log", "-1", "--format=%cD"]).current_dir(workspace::root()))
        .or_else(|_| run(Command::new("date").arg("-R")))?;
    let entry = format!(
        "{name} ({version}) unstable; urgency=medium\n\n  * See changelog.gz for the changes of this version.\n\n -- {MAINTAINER}  \
         {time}"
    );
    let debian = folder.join("changelog.Debian");
    write(&debian, &entry)?;
    compress(&debian)
}

fn write_control(package: &Package, root: &Path, folder: &Path, version: &str) -> Result<(), String> {
    let architecture = architecture()?;
    let Package { name, description, .. } = package;
    // dpkg-shlibdeps looks for the source package that it is part of.
    write(&folder.join("debian/control"), &format!("Source: {name}\n\nPackage: {name}\nArchitecture: any\n"))?;
    let mut shlibdeps = Command::new("dpkg-shlibdeps");
    shlibdeps.arg("-O").args(package.programs.iter().map(|program| root.join("usr/bin").join(program)));
    let libraries = run(shlibdeps.current_dir(folder))?;
    let libraries = libraries.trim().strip_prefix("shlibs:Depends=").unwrap_or_default();
    let depends = package.depends.replace("${version}", version);
    let size: u64 = run(Command::new("du").args(["-sk", "--apparent-size"]).arg(root))?
        .split_whitespace()
        .next()
        .and_then(|size| size.parse().ok())
        .unwrap_or_default();
    let recommends = match package.recommends {
        "" => String::new(),
        names => format!("Recommends: {names}\n"),
    };
    let control = format!(
        "Package: {name}\nVersion: {version}\nArchitecture: {architecture}\nMaintainer: {MAINTAINER}\n\
         Installed-Size: {size}\nDepends: {libraries}, {depends}\n{recommends}\
         Section: admin\nPriority: optional\nDescription: {description}"
    );
    write(&root.join("DEBIAN/control"), &control)?;
    if !package.conffiles.is_empty() {
        write(&root.join("DEBIAN/conffiles"), &(package.conffiles.join("\n") + "\n"))?;
    }
    let sums =
        "find . -type f ! -path './DEBIAN/*' ! -path './etc/*' -printf '%P\\0' | LC_ALL=C sort -z | xargs -0 md5sum";
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
