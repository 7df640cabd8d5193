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
        ("ebb-gradients", &["ebb-kernels"]),
        ("ebb-kernels", &[]),
        ("ebb-proto", &[]),
        ("ebb-scheduler", &["ebb-block-manager"]),
        ("ebb-models", &["ebb-kernels"]),
        (
            "ebb-serving",
            &[
                "ebb-block-manager",
                "ebb-kernels",
                "ebb-models",
                "ebb-proto",
                "ebb-scheduler",
            ],
        ),
        (
            "ebb-lab",
            &[
                "ebb-block-manager",
                "ebb-gradients",
                "ebb-kernels",
                "ebb-models",
                "ebb-serving",
            ],
        ),
        (
            "ebb-engine",
            &[
                "ebb-block-manager",
                "ebb-kernels",
                "ebb-lab",
                "ebb-models",
                "ebb-proto",
                "ebb-scheduler",
                "ebb-serving",
            ],
        ),
        (
            "ebb-benches",
            &[
                "ebb-block-manager",
                "ebb-kernels",
                "ebb-load",
                "ebb-models",
                "ebb-proto",
                "ebb-scheduler",
                "ebb-serving",
            ],
        ),
        // Talks to servers over the wire alone: it can load any, and measures what clients see.
        ("ebb-load", &["ebb-proto"]),
        (
            "ebb-fuzz-targets",
            &["ebb-kernels", "ebb-models", "ebb-proto", "ebb-serving"],
        ),
        // Its tests import more, for development alone.
        (
            "ebb-tests",
            &["ebb-block-manager", "ebb-kernels", "ebb-scheduler"],
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

/// Names of all packages that the program is linked from, without those of build scripts and tests.
fn linked(flags: &[&str]) -> Vec<String> {
    let out = Command::new(env!("CARGO"))
        .args(["tree", "--offline", "--package=ebb-engine"])
        .args(["--edges=normal", "--prefix=none", "--format={p}"])
        .args(flags)
        .current_dir(root())
        .output()
        .expect("cargo tree runs");
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{said}");
    let text = String::from_utf8(out.stdout).expect("UTF-8");
    let names = text.lines().filter_map(|line| line.split(' ').next());
    names.map(str::to_owned).collect()
}

#[test]
fn a_server_is_built_without_calibration() {
    let calibration = ["ebb-lab", "ebb-gradients", "candle-core", "good_lp"];
    let (all, server) = (linked(&[]), linked(&["--no-default-features"]));
    for name in calibration {
        assert!(all.iter().any(|n| n == name), "{name} is in the program");
        assert!(
            !server.iter().any(|n| n == name),
            "{name} must not be in a program without the feature lab"
        );
    }
    let containerfile =
        std::fs::read_to_string(root().join("deploy/Containerfile")).expect("readable");
    let build = containerfile.lines().find(|l| l.contains("cargo build"));
    let build = build.expect("the image builds the program");
    assert!(build.contains("-p ebb-engine") && build.contains("--no-default-features"));
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
        "engine/lab",
        "engine/models",
        "engine/serving",
        "scheduler",
        "block-manager",
        "proto",
        "benches",
        "benches/load",
        "tests",
        "tests/fuzz-targets",
    ] {
        let manifest = std::fs::read_to_string(root().join(name).join("Cargo.toml"))
            .expect("readable manifest");
        assert!(
            manifest.contains("[lints]\nworkspace = true"),
            "{name} must take the workspace lints, which forbid unsafe"
        );
    }
}

/// The module of a file below a crate's `src`: `core/run.rs` is `core`, `run`; the crate's root is
/// nothing.
fn module_of(file: &Path) -> Vec<String> {
    let mut parts: Vec<String> = file
        .with_extension("")
        .components()
        .map(|part| part.as_os_str().to_string_lossy().into_owned())
        .collect();
    if matches!(
        parts.last().map(String::as_str),
        Some("mod" | "lib" | "main")
    ) {
        parts.pop();
    }
    parts
}

/// The names that stand behind every `crate::` and every `super::` that leads to the crate's root,
/// one for each branch of braces. `module` is the file's own; of modules in the file, none is
/// nested deeper than one.
fn root_names(text: &str, module: &[String]) -> Vec<String> {
    let mut names = Vec::new();
    let code: Vec<&str> = text
        .lines()
        .map(|line| line.split("//").next().expect("a beginning"))
        .collect();
    let (code, tests) = match code.iter().position(|line| *line == "mod tests {") {
        Some(at) => (code[..at].join("\n"), code[at..].join("\n")),
        None => (code.join("\n"), String::new()),
    };
    for (code, depth) in [(code, module.len()), (tests, module.len() + 1)] {
        let ups = "super::".repeat(depth);
        for start in ["crate::", ups.as_str()] {
            if start.is_empty() {
                continue;
            }
            for (at, _) in code.match_indices(start) {
                let before = code[..at].chars().next_back();
                if before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':') {
                    continue;
                }
                let rest = &code[at + start.len()..];
                let own = |text: &str| -> String {
                    let text = text.trim_start();
                    text.chars()
                        .take_while(|c| c.is_alphanumeric() || *c == '_')
                        .collect()
                };
                match rest.strip_prefix('{') {
                    None => names.push(own(rest)),
                    Some(inner) => {
                        let mut depth = 1;
                        let mut piece = String::new();
                        for c in inner.chars() {
                            match c {
                                '{' => depth += 1,
                                '}' => depth -= 1,
                                ',' if depth == 1 => {
                                    names.push(own(&std::mem::take(&mut piece)));
                                    continue;
                                }
                                _ => {}
                            }
                            if depth == 0 {
                                break;
                            }
                            piece.push(c);
                        }
                        names.push(own(&piece));
                    }
                }
            }
        }
    }
    names.retain(|name| !name.is_empty());
    names
}

#[test]
fn paths_are_read_as_the_compiler_reads_them() {
    let names = |text: &str, module: &[&str]| {
        let module: Vec<String> = module.iter().map(|m| (*m).to_owned()).collect();
        root_names(text, &module)
    };
    let text = "use crate::a::B;\nuse crate::{c::{D, E}, f};\nuse super::g;\nuse x_crate::h;\n";
    assert_eq!(names(text, &["own", "deep"]), ["a", "c", "f"]);
    assert_eq!(names("use super::g;\n", &["own"]), ["g"]);
    assert_eq!(names("use super::super::i::J;\n", &["own", "deep"]), ["i"]);
    let inner = "fn f() {}\nmod tests {\n    use super::k;\n    use super::super::l;\n}\n";
    assert_eq!(names(inner, &["own"]), ["l"]);
    assert_eq!(names("// use crate::m;\n", &["own"]), [""; 0]);
}

#[test]
fn modules_of_the_engines_crates_form_no_import_cycle() {
    for name in ["models", "serving", "lab"] {
        let src = root().join("engine").join(name).join("src");
        let mut files = Vec::new();
        rust_files(&src, &mut files);
        let mut imports: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut uses = Vec::new();
        for file in files {
            let module = module_of(file.strip_prefix(&src).expect("below src"));
            let Some(top) = module.first().cloned() else {
                continue;
            };
            let text = std::fs::read_to_string(&file).expect("readable source");
            imports.entry(top.clone()).or_default();
            let named = root_names(&text, &module).into_iter();
            uses.extend(named.map(|other| (top.clone(), other, file.clone())));
        }
        for (top, other, file) in uses {
            assert!(
                imports.contains_key(&other),
                "{} imports {other} from the crate's root; name its module",
                file.display()
            );
            if other != top {
                imports.entry(top).or_default().push(other);
            }
        }
        // Takes away modules that import nothing which is left, until none is.
        while !imports.is_empty() {
            let free: Vec<String> = imports
                .iter()
                .filter(|(_, on)| on.iter().all(|o| !imports.contains_key(o)))
                .map(|(module, _)| module.clone())
                .collect();
            assert!(
                !free.is_empty(),
                "modules of engine/{name} import each other in a circle: {imports:?}"
            );
            for module in free {
                imports.remove(&module);
            }
        }
    }
}
