//! The crate arrows of ARCHITECTURE.md, checked: who may import whom, and what the pure crates must
//! not know.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the workspace root")
        .to_owned()
}

/// Direct, non-development dependencies of every workspace crate.
fn dependencies() -> BTreeMap<String, Vec<String>> {
    let out = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version=1", "--offline"])
        .current_dir(root())
        .output()
        .expect("cargo metadata runs");
    assert!(
        out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    let metadata: serde_json::Value =
        serde_json::from_slice(&out.stdout).expect("cargo metadata prints JSON");
    let packages = metadata["packages"].as_array().expect("packages");
    packages
        .iter()
        .map(|package| {
            let dependencies = package["dependencies"].as_array().expect("dependencies");
            let mut names: Vec<String> = dependencies
                .iter()
                .filter(|d| d["kind"].as_str() != Some("dev"))
                .map(|d| d["name"].as_str().expect("name").to_owned())
                .collect();
            names.sort();
            (package["name"].as_str().expect("name").to_owned(), names)
        })
        .collect()
}

#[test]
fn workspace_crates_import_only_along_the_arrows() {
    let allowed: BTreeMap<&str, &[&str]> = BTreeMap::from([
        ("ebb-block-manager", &[][..]),
        ("ebb-gradients", &[]),
        ("ebb-kernels", &[]),
        ("ebb-proto", &[]),
        ("ebb-scheduler", &["ebb-block-manager"]),
        (
            "ebb-engine",
            &[
                "ebb-block-manager",
                "ebb-gradients",
                "ebb-kernels",
                "ebb-proto",
                "ebb-scheduler",
            ],
        ),
        (
            "ebb-benches",
            &[
                "ebb-block-manager",
                "ebb-engine",
                "ebb-kernels",
                "ebb-load",
                "ebb-proto",
                "ebb-scheduler",
            ],
        ),
        // Talks to servers over the wire alone: it can load any, and measures what clients see.
        ("ebb-load", &["ebb-proto"]),
        (
            "ebb-tests",
            &[
                "ebb-block-manager",
                "ebb-engine",
                "ebb-kernels",
                "ebb-proto",
                "ebb-scheduler",
            ],
        ),
    ]);
    let found = dependencies();
    assert_eq!(
        found.keys().map(String::as_str).collect::<Vec<_>>(),
        allowed.keys().copied().collect::<Vec<_>>()
    );
    for (name, dependencies) in &found {
        for dependency in dependencies.iter().filter(|d| d.starts_with("ebb-")) {
            assert!(
                allowed[name.as_str()].contains(&dependency.as_str()),
                "{name} must not import {dependency}: see the crate table in ARCHITECTURE.md"
            );
        }
    }
}

#[test]
fn the_pure_crates_know_no_runtime_and_no_device() {
    let found = dependencies();
    for name in ["ebb-block-manager", "ebb-scheduler"] {
        for forbidden in [
            "tokio",
            "cudarc",
            "metrics",
            "tracing",
            "rand",
            "parking_lot",
        ] {
            assert!(
                !found[name].iter().any(|d| d == forbidden),
                "{name} must not depend on {forbidden}"
            );
        }
    }
}

fn rust_files(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).expect("readable source folder") {
        let path = entry.expect("readable entry").path();
        if path.is_dir() {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn the_pure_crates_use_no_clock_thread_or_environment() {
    for name in ["block-manager", "scheduler"] {
        let mut files = Vec::new();
        rust_files(&root().join(name).join("src"), &mut files);
        assert!(!files.is_empty());
        for file in files {
            let text = std::fs::read_to_string(&file).expect("readable source");
            for forbidden in [
                "std::time",
                "Instant::now",
                "SystemTime",
                "std::thread",
                "std::env",
                "std::fs",
                "std::net",
                "RandomState",
            ] {
                assert!(
                    !text.contains(forbidden),
                    "{} uses {forbidden}; events carry such things in",
                    file.display()
                );
            }
        }
    }
}

#[test]
fn only_kernels_may_hold_unsafe_code() {
    for name in [
        "engine",
        "engine/gradients",
        "scheduler",
        "block-manager",
        "proto",
        "benches",
        "benches/load",
        "tests",
    ] {
        let manifest = std::fs::read_to_string(root().join(name).join("Cargo.toml"))
            .expect("readable manifest");
        assert!(
            manifest.contains("[lints]\nworkspace = true"),
            "{name} must take the workspace lints, which forbid unsafe"
        );
    }
}
