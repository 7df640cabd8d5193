//! The command on an emulated GPU, beside the CPU.

use crate::bench::Bench;

/// The command's figures on a GPU are those of the CPU, which goes on from them.
#[test]
fn profiles_of_both_devices_are_alike() {
    let bench = Bench::new();
    let line = "calibrate --method pmkvq --text text.txt --ctx 256 --samples 1 --budget 3.5 \
                --key-scales int2t";
    bench.good(&format!("{line} --device cpu --out cpu.json"));
    bench.good(&format!("{line} --device cuda --out gpu.json"));
    let [on_cores, on_gpu] = ["cpu.json.losses", "gpu.json.losses"].map(|name| bench.losses(name));
    assert_eq!((on_cores.len(), &on_cores[0]), (on_gpu.len(), &on_gpu[0]));
    for (a, b) in on_cores.iter().zip(&on_gpu).skip(1) {
        let [(name, a), (other, b)] = [a, b].map(|line| line.rsplit_once(',').expect("a figure"));
        assert_eq!(name, other);
        let [a, b]: [f64; 2] = [a, b].map(|x| x.parse().expect("a number"));
        // A value between two codes goes one way or the other.
        assert!((a - b).abs() < 2e-3 * a, "{name}: {a} {b}");
    }
    let [cpu, gpu] = ["cpu.json", "gpu.json"].map(|name| bench.profile(name));
    assert_eq!(cpu["floors"], gpu["floors"]);
    assert_eq!(cpu["key_scales"]["alpha"], gpu["key_scales"]["alpha"]);
    bench.good(&format!("{line} --device cpu --out gpu.json"));
    assert_eq!(bench.losses("gpu.json.losses"), on_gpu);
}
