//! Any text as a host file: it is parsed or rejected, without a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match sluice_config::parse("fuzz.toml", text) {
        Ok(host) => assert!(host.vms.values().all(|vm| vm.policy.check().is_ok())),
        Err(findings) => {
            assert!(findings.errors() > 0, "a refusal names its reason");
            let _ = findings.to_string();
        }
    }
});
