//! The CUDA kernels against their references, emulated on the CPU.
#![cfg(feature = "cuda-emulator")]

use ebb_kernels::cuda::{Device, selftest};

/// Whether every access to shared memory is looked at (tests/races.sh): few and short cases.
fn is_quick() -> bool {
    std::env::var("EBB_EMULATOR_RACES").is_ok_and(|v| v == "quick")
}

#[test]
fn attention_agrees_with_its_definition() {
    let device = Device::open(0).unwrap();
    assert!(
        selftest::attention(&device, is_quick()).unwrap(),
        "see the table above"
    );
}

#[test]
fn attention_of_heads_of_every_width_agrees_with_its_definition() {
    let device = Device::open(0).unwrap();
    assert!(
        selftest::heads(&device, is_quick()).unwrap(),
        "see the table above"
    );
    let older = Device::open_as(0, Some("8.6".parse().unwrap())).unwrap();
    assert!(
        selftest::heads(&older, true).unwrap(),
        "see the table above"
    );
}

#[test]
fn models_agree_with_the_cpu_backend() {
    let device = Device::open(0).unwrap();
    assert!(selftest::models(&device).unwrap(), "see the table above");
}

#[test]
fn recurrent_layers_agree_with_their_definition() {
    let device = Device::open(0).unwrap();
    assert!(
        selftest::recurrences(&device, is_quick()).unwrap(),
        "see the table above"
    );
}

#[test]
fn products_agree_with_their_definition() {
    let device = Device::open(0).unwrap();
    assert!(
        selftest::products(&device, is_quick()).unwrap(),
        "see the table above"
    );
}

#[test]
fn experts_agree_with_their_definition() {
    let device = Device::open(0).unwrap();
    assert!(
        selftest::experts(&device, is_quick()).unwrap(),
        "see the table above"
    );
    let older = Device::open_as(0, Some("8.6".parse().unwrap())).unwrap();
    assert!(
        selftest::experts(&older, true).unwrap(),
        "see the table above"
    );
}

#[test]
fn products_of_packed_weights_agree_with_their_definition() {
    let device = Device::open(0).unwrap();
    assert!(
        selftest::packed_products(&device, is_quick()).unwrap(),
        "see the table above"
    );
    let older = Device::open_as(0, Some("8.6".parse().unwrap())).unwrap();
    assert!(
        selftest::packed_products(&older, true).unwrap(),
        "see the table above"
    );
}

#[test]
fn samples_agree_with_their_definition() {
    let device = Device::open(0).unwrap();
    assert!(selftest::sampling(&device).unwrap(), "see the table above");
}

#[test]
fn formats_agree_with_the_cpu_to_the_bit() {
    let device = Device::open(0).unwrap();
    assert!(selftest::formats(&device).unwrap(), "see the table above");
}

/// What devices without a copy engine run: rings of `cp.async` and 99 KiB of shared memory.
#[test]
fn attention_on_older_devices_agrees_with_its_definition() {
    let older = "8.6".parse().unwrap();
    let device = Device::open_as(0, Some(older)).unwrap();
    assert!(!device.has_copy_engine());
    assert!(
        selftest::attention(&device, is_quick()).unwrap(),
        "see the table above"
    );
}

#[test]
fn models_on_older_devices_agree_with_the_cpu_backend() {
    let older = "8.6".parse().unwrap();
    let device = Device::open_as(0, Some(older)).unwrap();
    assert!(!device.has_copy_engine());
    assert!(
        selftest::shrinking_models(&device).unwrap(),
        "see the table above"
    );
}

#[test]
fn windows_caps_and_sinks_agree_with_their_definition() {
    let device = Device::open(0).unwrap();
    assert!(
        selftest::scores(&device, is_quick()).unwrap(),
        "see the table above"
    );
    let older = Device::open_as(0, Some("8.6".parse().unwrap())).unwrap();
    assert!(
        selftest::scores(&older, true).unwrap(),
        "see the table above"
    );
}
