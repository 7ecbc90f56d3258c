use super::*;

#[test]
fn request_header_has_the_layout_of_the_protocol() {
    let header = RequestHeader { flags: 0x0102, command: 6, cookie: 0x1122_3344_5566_7788, offset: 0x99, length: 7 };
    let bytes = header.encode();
    let expected: [u8; 28] = [
        0x25, 0x60, 0x95, 0x13, 1, 2, 0, 6, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0, 0, 0, 0, 0, 0, 0, 0x99,
        0, 0, 0, 7,
    ];
    assert_eq!(bytes, expected);
    assert_eq!(RequestHeader::parse(&bytes), Ok(header));
    assert_eq!(header.kind(), Command::WriteZeroes);
}

#[test]
fn a_magic_with_any_wrong_byte_is_rejected() {
    let good = RequestHeader { flags: 0, command: 0, cookie: 0, offset: 0, length: 0 }.encode();
    for at in 0..4 {
        let mut bad = good;
        bad[at] ^= 0x40;
        assert!(matches!(RequestHeader::parse(&bad), Err(WireError::BadMagic { expected: REQUEST_MAGIC, .. })));
    }
    assert!(ChunkHeader::parse(&[0; 20]).is_err());
}

#[test]
fn commands_map_both_ways() {
    for raw in 0..=300u16 {
        assert_eq!(u16::from(Command::from(raw)), raw);
        assert_eq!(matches!(Command::from(raw), Command::Other(_)), raw > 7);
    }
}

#[test]
fn errno_from_os() {
    let table = [
        (libc::EPERM, Errno::Eperm),
        (libc::EROFS, Errno::Eperm),
        (libc::EIO, Errno::Eio),
        (libc::ENOMEM, Errno::Enomem),
        (libc::EINVAL, Errno::Einval),
        (libc::ENOSPC, Errno::Enospc),
        (libc::EFBIG, Errno::Enospc),
        (libc::EDQUOT, Errno::Enospc),
        (libc::EOVERFLOW, Errno::Eoverflow),
        (libc::ENOTSUP, Errno::Enotsup),
        (libc::ESHUTDOWN, Errno::Eshutdown),
        (libc::ENODEV, Errno::Eio),
        (0, Errno::Eio),
        (-5, Errno::Eio),
    ];
    for (os, errno) in table {
        assert_eq!(Errno::from_os(os), errno, "errno {os}");
        assert_eq!(Errno::from_wire(errno.to_wire()), Some(errno));
    }
    assert_eq!(Errno::from_wire(0), None);
    assert_eq!(Errno::from_wire(9999), Some(Errno::Einval));
}

#[test]
fn simple_replies() {
    assert_eq!(simple_reply(1, Ok(())), [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    assert_eq!(simple_reply(1, Err(Errno::Enospc))[4..8], [0, 0, 0, 28]);
}

#[test]
fn chunks_of_a_read() {
    let bytes = read_data_chunk(5, 8192, 4096);
    let header = ChunkHeader::parse(bytes.first_chunk().expect("28 bytes")).expect("good magic");
    assert_eq!(header, ChunkHeader { flags: chunk::DONE, kind: chunk::OFFSET_DATA, cookie: 5, length: 4104 });
    assert_eq!(u64_at(&bytes, 20), 8192);

    let bytes = offset_hole_chunk(5, 8192, 4096);
    let header = ChunkHeader::parse(bytes.first_chunk().expect("32 bytes")).expect("good magic");
    assert_eq!((header.kind, header.length), (chunk::OFFSET_HOLE, 12));
    assert_eq!((u64_at(&bytes, 20), u32_at(&bytes, 28)), (8192, 4096));

    let header = ChunkHeader::parse(&none_chunk(9)).expect("good magic");
    assert_eq!(header, ChunkHeader { flags: chunk::DONE, kind: chunk::NONE, cookie: 9, length: 0 });
}

#[test]
fn error_chunk_carries_its_message_and_cuts_it_at_a_character() {
    let mut out = Vec::new();
    error_chunk(&mut out, 3, Errno::Eperm, "Read-only");
    let header = ChunkHeader::parse(out.first_chunk().expect("a header")).expect("good magic");
    assert_eq!((header.kind, header.length), (chunk::ERROR, 15));
    assert_eq!((u32_at(&out, 20), u16_at(&out, 24), &out[26..]), (1, 9, &b"Read-only"[..]));

    out.clear();
    error_chunk(&mut out, 3, Errno::Eio, &"é".repeat(3000));
    assert_eq!(u16_at(&out, 24), 4096);
    out.clear();
    error_chunk(&mut out, 3, Errno::Eio, &format!("x{}", "é".repeat(3000)));
    assert_eq!((u16_at(&out, 24), out.len()), (4095, 26 + 4095));
}

#[test]
fn error_reply_has_the_negotiated_form() {
    let mut out = Vec::new();
    error_reply(&mut out, false, 3, Errno::Eio, "No");
    assert_eq!(out, simple_reply(3, Err(Errno::Eio)));
    out.clear();
    error_reply(&mut out, true, 3, Errno::Eio, "No");
    assert_eq!(out.len(), 28);
}

#[test]
fn block_status_maps_both_ways() {
    let wanted =
        [Extent { length: 4096, flags: 0 }, Extent { length: 8192, flags: allocation::HOLE | allocation::ZERO }];
    let mut out = Vec::new();
    block_status_chunk(&mut out, 7, 1, wanted.iter().copied());
    let header = ChunkHeader::parse(out.first_chunk().expect("a header")).expect("good magic");
    assert_eq!((header.kind, header.length), (chunk::BLOCK_STATUS, 20));
    assert_eq!(u32_at(&out, 20), 1);
    assert_eq!(extents(&out[24..]).collect::<Vec<_>>(), wanted);
}
