use super::*;
use crate::source::{DiskSet, Holder, Support};
use rustix::fs::{AtFlags, CWD, Mode, RenameFlags, StatxFlags, fcntl_getfl, mknodat, statx};
use tempfile::{NamedTempFile, TempDir};

const MIB: u64 = 1 << 20;
/// Long enough for any machine; the event comes first.
const LONG: Duration = Duration::from_secs(60);

fn image(size_bytes: u64) -> NamedTempFile {
    let image = NamedTempFile::new().unwrap();
    image.as_file().set_len(size_bytes).unwrap();
    image
}

/// For tests that do not depend on direct I/O.
fn buffered(image: &NamedTempFile, offset: u64, length: Option<u64>) -> SourceSpec {
    SourceSpec { offset, length, buffered: true, ..SourceSpec::whole(image.path()) }
}

/// Whether the kernel itself accepts direct I/O on a file.
fn kernel_does_direct(path: &Path) -> bool {
    let opened = rustix::fs::open(path, OFlags::RDWR | OFlags::DIRECT, Mode::empty());
    let report = statx(CWD, path, AtFlags::empty(), StatxFlags::DIOALIGN).unwrap();
    let refused = report.stx_mask & StatxFlags::DIOALIGN.bits() != 0 && report.stx_dio_offset_align == 0;
    opened.is_ok() && !refused
}

fn read_first_block(source: &Source) -> Vec<u8> {
    let alignment = source.alignment();
    let (memory, block) = (alignment.memory as usize, alignment.offset as usize);
    let mut buffer = vec![0; memory + block];
    let start = buffer.as_ptr().align_offset(memory);
    let read = rustix::io::pread(source, &mut buffer[start..start + block], source.range().offset).unwrap();
    assert_eq!(read, block);
    buffer[start..start + block].to_vec()
}

#[test]
fn direct_io_is_used_exactly_if_the_kernel_supports_it() {
    for folder in [std::env::temp_dir(), PathBuf::from("/dev/shm")] {
        let image = NamedTempFile::new_in(&folder).unwrap();
        std::fs::write(image.path(), vec![7; MIB as usize]).unwrap();
        let expected = kernel_does_direct(image.path());
        match Source::open(&SourceSpec::whole(image.path())) {
            Ok(source) => {
                assert!(expected, "{}", folder.display());
                assert!(fcntl_getfl(&source).unwrap().contains(OFlags::DIRECT));
                assert!(source.alignment().offset >= 512);
                assert!(read_first_block(&source).iter().all(|&byte| byte == 7));
            }
            Err(SourceError::NotDirect { .. }) => assert!(!expected, "{}", folder.display()),
            Err(other) => panic!("{other}"),
        }
    }
}

#[test]
fn a_buffered_volume_has_no_direct_flag_and_sectors_of_512() {
    let image = image(512 * 3);
    let source = Source::open(&buffered(&image, 512, None)).unwrap();
    assert!(!fcntl_getfl(&source).unwrap().contains(OFlags::DIRECT));
    assert_eq!(source.alignment(), Alignment { memory: 1, offset: 512 });
    assert_eq!((source.size_bytes(), source.range().offset), (1024, 512));
    assert!(source.is_buffered() && !source.is_block_device() && !source.is_read_only());
    assert_eq!(read_first_block(&source).len(), 512);
}

#[test]
fn ranges_must_lie_in_the_file_and_fit_its_blocks() {
    let image = image(MIB);
    let refusal = |offset, length| Source::open(&buffered(&image, offset, length)).unwrap_err();
    assert!(
        matches!(refusal(0, Some(MIB + 1)), SourceError::TooShort { size_bytes: MIB, end_bytes, .. } if end_bytes == MIB + 1)
    );
    assert!(matches!(refusal(2 * MIB, None), SourceError::TooShort { .. }));
    assert!(matches!(refusal(512, Some(u64::MAX)), SourceError::TooShort { end_bytes: u64::MAX, .. }));
    assert!(matches!(refusal(MIB, None), SourceError::Empty { .. }));
    assert!(matches!(refusal(0, Some(0)), SourceError::Empty { .. }));
    assert!(matches!(refusal(100, None), SourceError::Misaligned { what: "offset", value_bytes: 100, .. }));
    assert!(matches!(refusal(0, Some(1000)), SourceError::Misaligned { what: "length", alignment_bytes: 512, .. }));
}

#[test]
fn a_qcow2_image_of_odd_length_was_to_be_truncated() {
    let image = image(1000);
    rustix::io::pwrite(&image, b"QFI\xfb\0\0\0\x03", 0).unwrap();
    let first = SourceSpec { format: FormatCheck::UnlessKnown(Arc::default()), ..buffered(&image, 0, None) };
    let refusal = Source::open(&first).unwrap_err();
    assert!(matches!(refusal, SourceError::NotRaw { format, .. } if format.name == "qcow2"), "{refusal}");
    assert!(refusal.to_string().contains("qemu-img convert -f qcow2 -O raw"), "{refusal}");
    rustix::io::pwrite(&image, &[0; 8], 0).unwrap();
    let refusal = Source::open(&first).unwrap_err();
    assert!(matches!(refusal, SourceError::Misaligned { .. }), "{refusal}");
}

#[test]
fn the_guests_own_data_was_taken_for_another_format() {
    let image = image(MIB);
    let magic = b"QFI\xfb\0\0\0\x03";
    rustix::io::pwrite(&image, magic, 4096).unwrap();
    let first =
        |offset| SourceSpec { format: FormatCheck::UnlessKnown(Arc::default()), ..buffered(&image, offset, None) };
    assert!(matches!(Source::open(&first(4096)), Err(SourceError::NotRaw { .. })));
    let source = Source::open(&first(0)).unwrap();
    let known = Arc::new(Known::from([((source.identity().unwrap().to_owned(), 0), None)]));
    drop(source);
    rustix::io::pwrite(&image, magic, 0).unwrap();
    assert!(matches!(Source::open(&first(0)), Err(SourceError::NotRaw { .. })));
    assert!(Source::open(&SourceSpec { format: FormatCheck::UnlessKnown(known.clone()), ..first(0) }).is_ok());
    assert!(Source::open(&SourceSpec { format: FormatCheck::UnlessKnown(known), ..first(4096) }).is_err());
    assert!(Source::open(&SourceSpec { format: FormatCheck::Raw, ..first(4096) }).is_ok());
}

#[test]
fn empty_files_are_refused_whatever_the_cache() {
    let image = image(0);
    for buffered in [false, true] {
        let spec = SourceSpec { buffered, ..SourceSpec::whole(image.path()) };
        assert!(matches!(Source::open(&spec), Err(SourceError::Empty { .. })));
    }
}

#[test]
fn only_files_and_block_devices_are_volumes() {
    let folder = TempDir::new().unwrap();
    let pipe = folder.path().join("pipe");
    mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    for (path, expected) in [(folder.path(), "folder"), (&pipe, "pipe"), (Path::new("/dev/null"), "character device")] {
        match Source::open(&SourceSpec::whole(path)) {
            Err(SourceError::NotAVolume { kind, .. }) => assert_eq!(kind, expected),
            other => panic!("{other:?}"),
        }
    }
    let missing = Source::open(&SourceSpec::whole(folder.path().join("missing"))).unwrap_err();
    assert!(matches!(&missing, SourceError::Open { source, .. } if source.kind() == io::ErrorKind::NotFound));
}

#[test]
fn a_byte_has_one_writer_by_any_path() {
    let image = image(MIB);
    let folder = TempDir::new().unwrap();
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(image.path(), &link).unwrap();

    let first = Source::open(&buffered(&image, 0, Some(4096))).unwrap();
    let by_link = SourceSpec { path: link, ..buffered(&image, 0, None) };
    match Source::open(&by_link) {
        Err(SourceError::Busy { holder, range, .. }) => {
            assert_eq!((holder, range), (Holder::ThisProcess, ByteRange::new(0, MIB)));
        }
        other => panic!("{other:?}"),
    }
    let second = Source::open(&SourceSpec { offset: 4096, ..by_link }).unwrap();
    assert_eq!(first.id(), second.id());
    assert!(!first.shares_bytes_with(&second) && first.shares_bytes_with(&first));
}

#[test]
fn a_link_that_a_tenant_put_in_place_of_its_image_gave_it_the_file_of_another() {
    let here = TempDir::new().unwrap();
    let (theirs, secret) = (here.path().join("theirs"), here.path().join("secret"));
    std::fs::create_dir(&theirs).unwrap();
    std::fs::File::create_new(&secret).unwrap().set_len(MIB).unwrap();
    let image = theirs.join("a.img");
    let spec = SourceSpec { buffered: true, ..SourceSpec::whole(&image) };
    std::os::unix::fs::symlink(&secret, &image).unwrap();
    assert!(Source::open(&spec).is_ok(), "only this user can have created it");
    std::os::unix::fs::chown(&theirs, Some(54_321), None).unwrap();
    match Source::open(&spec) {
        Err(SourceError::Link { link, .. }) => assert_eq!(link, image),
        other => panic!("{other:?}"),
    }
    // The same while the path is being opened: alternately an image and a link.
    let secret_inode = rustix::fs::stat(&secret).unwrap().st_ino;
    let own = theirs.join("own");
    std::fs::File::create_new(&own).unwrap().set_len(MIB).unwrap();
    let swap = || rustix::fs::renameat_with(CWD, &own, CWD, &image, RenameFlags::EXCHANGE).unwrap();
    path_walk::run_concurrently(swap, || {
        for _ in 0..2000 {
            match Source::open(&spec) {
                Ok(source) => assert_ne!(rustix::fs::fstat(&source).unwrap().st_ino, secret_inode),
                Err(SourceError::Link { .. } | SourceError::Replaced { .. }) => {}
                Err(error) => panic!("{error:?}"),
            }
        }
    });
}

#[test]
fn readers_share() {
    let image = image(MIB);
    let reader = SourceSpec { read_only: true, ..buffered(&image, 0, None) };
    let (first, second) = (Source::open(&reader).unwrap(), Source::open(&reader).unwrap());
    assert_eq!(first.capabilities().discard, Support::No);
    assert!(second.is_read_only());
    assert!(matches!(Source::open(&buffered(&image, 0, None)), Err(SourceError::Busy { .. })));
}

#[test]
fn a_duplicate_of_the_description_keeps_the_volume_and_opening_can_wait_for_it() {
    let image = image(MIB);
    let spec = buffered(&image, 0, None);
    let duplicate = Source::open(&spec).unwrap().into_fd().try_clone().unwrap();
    assert!(matches!(Source::open(&spec), Err(SourceError::Busy { .. })));
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| Source::open_within(&spec, LONG));
        drop(duplicate);
        waiter.join().unwrap().unwrap();
    });
}

#[test]
fn queries_of_an_open_volume_are_relative_to_its_range() {
    let image = image(4 * MIB);
    rustix::io::pwrite(&image, &vec![7; MIB as usize], 2 * MIB).unwrap();
    image.as_file().sync_all().unwrap();
    let source = Source::open(&buffered(&image, 2 * MIB, None)).unwrap();

    let spans = source.allocation(ByteRange::new(0, 2 * MIB), 16);
    assert_eq!(spans.iter().map(|span| span.length).sum::<u64>(), 2 * MIB);
    assert_eq!(spans[0].kind, crate::source::Allocation::Data);
    assert!(source.extents().unwrap().physical(0).is_some());
    assert_eq!(source.disks().unwrap(), DiskSet::of_path(image.path()).unwrap());
}
