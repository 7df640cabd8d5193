//! An opened model, whatever its files.

use ebb_kernels::model::{TensorName, WeightSource as _};
use ebb_models::model::LoadedModel;

use crate::sentence::assert_sentence;

/// Reads every weight. The files hold them, so that they take no more memory than the input's
/// length allows.
pub(super) fn read_weights(model: &LoadedModel) {
    let weights = model.weights();
    for name in TensorName::all(&model.spec) {
        let shape = name.shape(&model.spec);
        assert_eq!(
            weights.shape(name).expect("it was checked"),
            shape,
            "{name}"
        );
        match weights.load(name) {
            Ok(values) => {
                assert_eq!(values.len(), shape.iter().product::<usize>(), "{name}");
                assert!(values.iter().all(|value| value.is_finite()), "{name}");
            }
            Err(error) => assert_sentence(&error),
        }
    }
    check(model);
    assert!(!model.identity().weights.is_empty());
}

/// What the engine relies on in every model.
pub(super) fn check(model: &LoadedModel) {
    model
        .spec
        .validate()
        .expect("models are checked when they are opened");
    assert!(
        model
            .end_ids
            .iter()
            .all(|&id| (id as usize) < model.spec.vocab)
    );
    assert!(model.parameters() > 0 && model.max_context() > 0);
    model.notes.iter().for_each(|note| assert_sentence(note));
}
