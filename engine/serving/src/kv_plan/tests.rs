use ebb_kernels::formats::FormatId as F;
use ebb_kernels::formats::rotation::Rotation;
use ebb_models::model::Identity;

use super::*;
use crate::kv_profile::{Method, ProfileChange, RecentContext, Sides, width};
use crate::kv_spec::{Preset, preset_names};

const SMOL: KvGeometry = KvGeometry {
    layers: 30,
    kv_heads: 3,
    head_dim: 64,
    windowed: ebb_kernels::kv::WindowedLayers::NONE,
};

fn floor(text: &str) -> KvSource {
    KvSource::Floor(text.parse().unwrap())
}

#[test]
fn the_default_shrink_order_ends_at_its_floor_and_frees_frames_on_the_way() {
    let plan = KvPlan::new(SMOL, Mode::Progressive, &floor(DEFAULT_FLOOR)).unwrap();
    let last = plan.levels.last(MinBits::ANY);
    assert_eq!(
        plan.layout.formats(last),
        [F::Kitty25c, F::Int2c].repeat(30)
    );
    assert_eq!(plan.layout.levels(), plan.levels.len());
    for level in 0..plan.levels.len() as u16 {
        let at = plan.levels.level(level);
        let frames = plan.layout.frames(level);
        assert_eq!(at.size.frames, frames);
        assert_eq!(at.size.bytes, plan.layout.bytes(level));
        let by_format = plan.bytes_by_format(level, false);
        let (bytes, pages) = by_format.iter().fold((0, 0), |s, f| (s.0 + f.0, s.1 + f.1));
        assert_eq!((bytes, pages), (at.size.bytes, 60));
    }
    // A protected block is at 8 bit at worst, one of a request that asks for 4 at 4.
    let at = |bits| plan.layout.formats(plan.levels.floor(MinBits(bits)));
    assert!(at(8).iter().all(|f| *f == F::Int8));
    assert!(at(4).iter().all(|f| *f == F::Int4));
    assert!(
        (2.5..3.2).contains(&plan.floor_bits()),
        "{}",
        plan.floor_bits()
    );
}

/// 2-bit keys are clipped or not, all the way down, and layers may differ.
#[test]
fn keys_come_down_the_branch_of_their_floor() {
    let plain = (0..15).map(|i| format!(",layer{0}.k=int2,layer{0}.v=int2", 2 * i + 1));
    let spec = "k=int2c,v=int2c".to_owned() + &plain.collect::<String>();
    let plan = KvPlan::new(SMOL, Mode::Progressive, &floor(&spec)).unwrap();
    let all: Vec<&[F]> = (0..plan.levels.len() as u16)
        .map(|level| plan.layout.formats(level))
        .collect();
    let ends = [F::Int2c, F::Int2c, F::Int2, F::Int2].repeat(15);
    assert_eq!(all[all.len() - 1], ends);
    let seen = |layer: usize, format| all.iter().any(|page| page[2 * layer] == format);
    for (layer, own, other) in [
        (
            0,
            [F::Kitty25c, F::Kitty12c, F::Int2c],
            [F::Kitty25, F::Kitty12, F::Int2],
        ),
        (
            1,
            [F::Kitty25, F::Kitty12, F::Int2],
            [F::Kitty25c, F::Kitty12c, F::Int2c],
        ),
    ] {
        assert!(seen(layer, F::Int4) && own.iter().all(|f| seen(layer, *f)));
        assert!(!other.iter().any(|f| seen(layer, *f)));
    }
}

#[test]
fn static_plans_have_the_protected_formats_and_the_final_ones() {
    let plan = KvPlan::new(SMOL, Mode::Static, &floor("k=kitty12,v=int3")).unwrap();
    let at = |bound| plan.layout.formats(plan.levels.floor(bound));
    assert_eq!(at(MinBits::ANY), [F::Kitty12, F::Int3].repeat(30));
    // A static format is made from 16 bit only.
    assert_eq!(at(MinBits(8)), [F::Int8, F::F16].repeat(30));
    let whole = KvPlan::new(SMOL, Mode::Static, &floor("k=int2,v=int2,protect=f16")).unwrap();
    assert_eq!(whole.protected, MinBits::SIXTEEN);
}

#[test]
fn static_formats_are_no_floor_of_the_progressive_mode() {
    let error = KvPlan::new(SMOL, Mode::Progressive, &floor("k=polar44,v=int2")).unwrap_err();
    let error = error.to_string();
    assert!(
        error.contains("polar44") && error.contains("kitty25"),
        "{error}"
    );
}

#[test]
fn the_pool_guards_the_blocks_that_the_specification_does() {
    let guarded = |text: &str| {
        let plan = KvPlan::new(SMOL, Mode::Static, &floor(text)).unwrap();
        assert_eq!(plan.pool(4000).sink, plan.sink);
        [plan.sink, plan.protected]
    };
    let low = "k=int2,v=int2";
    assert_eq!(guarded(low), [MinBits(8); 2]);
    let text = format!("{low},protect=f16,recent=0");
    assert_eq!(guarded(&text), [MinBits::SIXTEEN, MinBits::ANY]);
    assert_eq!(guarded(&format!("{text},sink=0")), [MinBits::ANY; 2]);
    // A block alone is both: what guards the last one guards it.
    let values = format!("{low},protect=f16,sink=0,recent.k=0,recent.v=1");
    assert_eq!(guarded(&values), [MinBits::SIXTEEN; 2]);
    let error = KvPlan::new(SMOL, Mode::Static, &floor(&format!("{low},recent=2")));
    assert!(error.unwrap_err().to_string().contains("recent=1"));
}

fn identity() -> Identity {
    Identity {
        name: "SmolLM2-135M-Instruct".to_owned(),
        config: "c0".to_owned(),
        weights: "xxh3-w0".to_owned(),
    }
}

/// The floors are where the shrink order's legal changes end.
fn profile(changes: &[(&str, &str)]) -> Arc<Profile> {
    let mut floors = vec![F::F16; 60];
    for (name, to) in changes {
        let page = crate::kv_pages::page(name);
        if let (Some((Some(layer), side)), Ok(to)) = (page, to.parse())
            && layer < 30
        {
            floors[layer * 2 + side as usize] = to;
        }
    }
    let steps = changes.iter().map(|(page, to)| ProfileChange {
        page: (*page).to_owned(),
        to: (*to).to_owned(),
        loss: None,
    });
    let method = Method::default();
    Arc::new(Profile::new(
        identity(),
        SMOL,
        method,
        Rotation::NONE,
        &floors,
        steps.collect(),
    ))
}

#[test]
fn a_profile_is_followed_in_order_and_cut_at_a_width() {
    let all: Vec<(String, &str)> = (0..30)
        .flat_map(|l| {
            [
                (format!("layer{l}.v"), "int8"),
                (format!("layer{l}.k"), "int8"),
            ]
        })
        .collect();
    let all: Vec<(&str, &str)> = all.iter().map(|(p, t)| (p.as_str(), *t)).collect();
    let whole = profile(&all);
    let plan = KvPlan::new(
        SMOL,
        Mode::Progressive,
        &KvSource::Profile(whole.clone(), None),
    );
    let plan = plan.unwrap();
    assert_eq!(
        plan.layout.formats(3)[..4],
        [F::Int8, F::Int8, F::F16, F::Int8]
    );
    // Half of the pages at 16 bit: 12.2.
    let half = whole.formats(SMOL, Some(12.3), Protect::Int8).unwrap();
    let bits = width(SMOL, &half.sealed).unwrap();
    assert!(bits <= 12.3 && bits > 12.1, "{bits}");
    assert_eq!(half.sealed.iter().filter(|f| **f == F::Int8).count(), 30);
    let error = whole.formats(SMOL, Some(2.0), Protect::Int8).unwrap_err();
    assert!(error.to_string().contains("8.375"), "{error}");
}

#[test]
fn a_profile_that_does_not_fit_says_where() {
    let error = |changes: &[(&str, &str)]| {
        profile(changes)
            .changes(SMOL, None)
            .unwrap_err()
            .to_string()
    };
    assert!(error(&[("layer30.k", "int8")]).contains("30 layers"));
    assert!(error(&[("layer0.q", "int8")]).contains("layer0.q"));
    assert!(error(&[("layer0.v", "kitty25")]).contains("kitty25"));
    assert!(error(&[("layer0.v", "int4"), ("layer0.v", "int8")]).contains("step 1"));
    let other = KvGeometry { layers: 24, ..SMOL };
    let shape = profile(&[]).changes(other, None).unwrap_err().to_string();
    assert!(shape.contains("24 layers"), "{shape}");
}

/// Writes a profile after `change`, and reads it.
fn read_changed(change: impl FnOnce(&mut serde_json::Value)) -> Result<Profile, ProfileError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("profile.json");
    let written = profile(&[
        ("layer0.v", "int8"),
        ("layer0.v", "int2"),
        ("layer3.k", "int3"),
    ]);
    let mut written = Profile::clone(&written);
    written.budget_bits = Some(3.0);
    written
        .sensitivities
        .k
        .insert("int4".to_owned(), vec![0.5; 30]);
    written.recent = Some(RecentContext::new(Sides {
        k: vec![0.1; 30],
        v: vec![0.2; 30],
    }));
    let mut json = serde_json::to_value(&written).unwrap();
    change(&mut json);
    std::fs::write(&path, json.to_string()).unwrap();
    let read = Profile::read(&path);
    assert!(
        read.as_ref()
            .map_or(true, |p| json.get("x").is_some() || *p == written)
    );
    read
}

#[test]
fn a_profile_reads_as_it_was_written() {
    let read = read_changed(|_| ()).unwrap();
    assert_eq!(read.floor_formats().unwrap()[6], F::Int3);
    assert_eq!(read.floor_formats().unwrap()[1], F::Int2);
    // Earlier versions told what the released code's groups of 32 keep.
    read_changed(|p| {
        p["recent"]["group"] = 32.into();
        p["recent"]["tokens"] = serde_json::json!({"k": [[7, 38]], "v": [[13, 44]]});
    })
    .unwrap();
}

#[test]
fn a_profile_tells_what_is_rotated() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("profile.json");
    let read = |json: &serde_json::Value| {
        std::fs::write(&path, json.to_string()).unwrap();
        Profile::read(&path).unwrap().rotation()
    };
    for (k, v) in [(false, false), (true, false), (false, true), (true, true)] {
        let rotation = Rotation { k, v };
        let floors = [F::F16; 60];
        let written = Profile::new(
            identity(),
            SMOL,
            Method::default(),
            rotation,
            &floors,
            vec![],
        );
        let mut json = serde_json::to_value(&written).unwrap();
        assert_eq!(read(&json), rotation);
        let plan = KvSource::Profile(Arc::new(written), None);
        let plan = KvPlan::new(SMOL, Mode::Progressive, &plan).unwrap();
        assert_eq!(plan.rotation, rotation);
        // Profiles from before keys could be rotated do not tell.
        json.as_object_mut().unwrap().remove("rotate_k");
        assert_eq!(read(&json), Rotation { k: false, v });
    }
}

#[test]
fn a_damaged_profile_is_refused_with_what_is_wrong() {
    let error = |change: &dyn Fn(&mut serde_json::Value)| {
        let error = read_changed(change).unwrap_err().to_string();
        assert!(
            error.contains("profile.json") && error.contains("ebb calibrate"),
            "{error}"
        );
        error
    };
    assert!(error(&|p| p["floors"]["v"][0] = "int4".into()).contains("layer0.v"));
    assert!(error(&|p| p["floors"]["k"][3] = "int9".into()).contains("int9"));
    assert!(error(&|p| p["floors"]["v"][3] = "kitty25".into()).contains("kitty25"));
    assert!(error(&|p| p["floors"]["v"] = serde_json::json!(["f16"])).contains("1 floors"));
    assert!(error(&|p| p["sensitivities"]["k"]["int4"][7] = (-1.0).into()).contains("int4"));
    assert!(
        error(&|p| p["sensitivities"]["k"]["int4"] = serde_json::json!([])).contains("30 numbers")
    );
    assert!(error(&|p| p["recent"]["ratios"]["v"][0] = 1.0.into()).contains("ratios"));
    assert!(error(&|p| p["recent"]["ratios"]["k"][29] = (-0.1).into()).contains("ratios"));
    assert!(error(&|p| p["layers"] = 1_000_000_000_000u64.into()).contains("layers"));
    error(&|p| p["head_dim"] = 0.into());
    assert!(error(&|p| p["surprise"] = 1.into()).contains("surprise"));
    assert!(error(&|p| p["schedule"][1]["to"] = "int8".into()).contains("step 1"));
    assert!(error(&|p| p["model"] = "SmolLM2".into()).contains("Identity"));
    assert!(error(&|p| p["ebb_profile"] = serde_json::Value::Null).contains("null"));
}

#[test]
fn other_versions_are_refused_with_what_to_do() {
    let error = |version: u64| {
        let read = read_changed(|p| *p = serde_json::json!({"ebb_profile": version, "other": 1}));
        read.unwrap_err().to_string()
    };
    assert!(error(1).contains("version 1") && error(1).contains("which weights"));
    assert!(error(3).contains("the ebb that wrote it"), "{}", error(3));
}

#[test]
fn files_that_are_no_profiles_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("profile.json");
    for text in ["", "{", "[]", "{\"ebb_profile\": 2}", "\u{0}"] {
        std::fs::write(&path, text).unwrap();
        let error = Profile::read(&path).unwrap_err().to_string();
        assert!(error.contains("profile.json"), "{error}");
    }
    let missing = Profile::read(&dir.path().join("no")).unwrap_err();
    assert!(missing.to_string().contains("cannot read"), "{missing}");
}

#[test]
fn a_profile_of_another_model_is_refused() {
    let profile = profile(&[]);
    assert_eq!(profile.check_model(&identity()), Ok(()));
    // A name is no identity.
    let renamed = Identity {
        name: "mine".to_owned(),
        ..identity()
    };
    assert_eq!(profile.check_model(&renamed), Ok(()));
    let error = |served: Identity| profile.check_model(&served).unwrap_err().to_string();
    let weights = error(Identity {
        weights: "xxh3-w1".to_owned(),
        ..identity()
    });
    assert!(
        weights.contains("the weights of") && weights.contains("xxh3-w1"),
        "{weights}"
    );
    let config = error(Identity {
        config: "c1".to_owned(),
        ..identity()
    });
    assert!(config.contains("configuration and tensors"), "{config}");
}

#[test]
fn a_server_guards_blocks_and_not_tokens() {
    let spec: KvSpec = "k=kitty25page,v=int2,sink=32,recent=0".parse().unwrap();
    let plan = KvPlan::new(SMOL, Mode::Static, &KvSource::Floor(spec));
    let error = plan.unwrap_err().to_string();
    assert!(
        error.contains("sink=32") && error.contains("sink=1"),
        "{error}"
    );
}

#[test]
fn every_preset_without_a_profile_can_be_scored_and_served() {
    let names = preset_names();
    for name in names.split(", ").filter(|name| !name.contains(':')) {
        let preset = Preset::named(name, DEFAULT_FLOOR).unwrap();
        let sealed = preset.spec.formats(SMOL).unwrap().sealed;
        let source = KvSource::Floor(preset.spec);
        let plan = KvPlan::new(SMOL, preset.mode, &source).unwrap();
        // What is scored is where served blocks end.
        let floor = plan.levels.floor(MinBits::ANY);
        assert_eq!(plan.layout.formats(floor), sealed, "{name}");
    }
}
