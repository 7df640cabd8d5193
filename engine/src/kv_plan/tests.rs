use super::*;
use ebb_kernels::formats::FormatId as F;

const SMOL: KvGeometry = KvGeometry {
    layers: 30,
    kv_heads: 3,
    head_dim: 64,
};

fn floor(text: &str) -> KvSource {
    KvSource::Floor(text.parse().unwrap())
}

#[test]
fn the_default_schedule_ends_at_its_floor_and_frees_frames_on_the_way() {
    let plan = KvPlan::new(SMOL, Mode::Progressive, &floor(DEFAULT_FLOOR)).unwrap();
    let last = plan.positions.last(Bound::FLOOR);
    assert_eq!(plan.layout.formats(last), [F::Kitty25, F::Int2].repeat(30));
    assert_eq!(plan.layout.positions(), plan.positions.len());
    for position in 0..plan.positions.len() as u16 {
        let standing = plan.positions.standing(position);
        let frames = plan.layout.frames(position);
        assert_eq!(standing.cost.frames, frames);
        assert_eq!(standing.cost.bytes, plan.layout.bytes(position));
        let by_format = plan.bytes_by_format(position);
        let (bytes, pages) = by_format.iter().fold((0, 0), |s, f| (s.0 + f.0, s.1 + f.1));
        assert_eq!((bytes, pages), (standing.cost.bytes, 60));
    }
    // A protected block is at 8 bit at worst, one of a request that asks for 4 at 4.
    let at = |bits| plan.layout.formats(plan.positions.floor(Bound(bits)));
    assert!(at(8).iter().all(|f| *f == F::Int8));
    assert!(at(4).iter().all(|f| *f == F::Int4));
    assert!(
        (2.5..3.2).contains(&plan.floor_bits()),
        "{}",
        plan.floor_bits()
    );
}

#[test]
fn static_plans_have_the_protected_formats_and_the_final_ones() {
    let plan = KvPlan::new(SMOL, Mode::Static, &floor("k=kitty12,v=int3")).unwrap();
    let at = |bound| plan.layout.formats(plan.positions.floor(bound));
    assert_eq!(at(Bound::FLOOR), [F::Kitty12, F::Int3].repeat(30));
    // A static format is made from 16 bit only.
    assert_eq!(at(Bound(8)), [F::Int8, F::F16].repeat(30));
    let whole = KvPlan::new(SMOL, Mode::Static, &floor("k=int2,v=int2,protect=f16")).unwrap();
    assert_eq!(whole.protected, Bound::NEVER);
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

fn profile(schedule: &[(&str, &str)]) -> Arc<Profile> {
    let steps = schedule.iter().map(|(page, to)| ProfileStep {
        page: (*page).to_owned(),
        to: (*to).to_owned(),
        loss: None,
    });
    Arc::new(Profile::new(
        "SmolLM2-135M-Instruct",
        SMOL,
        false,
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
    assert_eq!(half.sealed.iter().filter(|f| **f == F::Int8).count(), 30);
    let error = whole.formats(SMOL, Some(2.0), Protect::Int8).unwrap_err();
    assert!(error.to_string().contains("8.375"), "{error}");
}

#[test]
fn a_profile_that_does_not_fit_says_where() {
    let error =
        |schedule: &[(&str, &str)]| profile(schedule).steps(SMOL, None).unwrap_err().to_string();
    assert!(error(&[("layer30.k", "int8")]).contains("30 layers"));
    assert!(error(&[("layer0.q", "int8")]).contains("layer0.q"));
    assert!(error(&[("layer0.v", "kitty25")]).contains("kitty25"));
    assert!(error(&[("layer0.v", "int4"), ("layer0.v", "int8")]).contains("step 1"));
    let other = KvGeometry { layers: 24, ..SMOL };
    let shape = profile(&[]).steps(other, None).unwrap_err().to_string();
    assert!(shape.contains("24 layers"), "{shape}");
}

#[test]
fn a_profile_reads_as_it_was_written_and_rejects_what_it_does_not_know() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("profile.json");
    let written = profile(&[("layer0.v", "int8"), ("layer0.v", "int2")]);
    std::fs::write(&path, serde_json::to_string(&*written).unwrap()).unwrap();
    assert_eq!(Profile::read(&path).unwrap(), *written);
    std::fs::write(&path, "{\"ebb_profile\": 2}").unwrap();
    assert!(
        Profile::read(&path)
            .unwrap_err()
            .to_string()
            .contains("profile.json")
    );
    let missing = Profile::read(&dir.path().join("no"))
        .unwrap_err()
        .to_string();
    assert!(missing.contains("cannot read"), "{missing}");
}
