//! What programs get of a GPU that nothing divides.

use super::{HELD, rounds_a_second};
use crate::lab::Lab;
use crate::pods::pod;
use crate::table::{figure, promise};

/// What docs/gpu-serving.md has a program leave of its share for its CUDA context, in MiB.
const CONTEXT_MIB: u64 = 600;

pub(super) fn ask(lab: &mut Lab) {
    lab.ask_cuda("full-by-the-book", "on a full GPU each pod gets its units less 600 MiB", |lab| {
        lab.clear()?;
        let units = lab.allocatable()?;
        let sizes = [units / 4, units / 4, units / 4, units - 3 * (units / 4)];
        let mut got = Vec::new();
        for (number, size) in sizes.iter().enumerate() {
            let take = size * 1024 - CONTEXT_MIB;
            lab.start_pod(&pod(format!("full-{number}"), *size, &format!("hold {take} 900")))?;
        }
        for (number, size) in sizes.iter().enumerate() {
            let line = lab.said(&format!("full-{number}"), "held", HELD)?;
            got.push((line["gotMib"].as_u64().unwrap_or_default(), size * 1024 - CONTEXT_MIB));
        }
        Ok(promise(got.iter().all(|(got, take)| got == take), format!("MiB got, of: {got:?}")))
    });
    lab.ask_cuda("time-slices", "two programs without isolation take turns", |lab| {
        lab.clear()?;
        lab.start_pod(&pod("alone", 2, "spin 100000 3"))?;
        let alone = rounds_a_second(lab, "alone")?;
        for name in ["turn-1", "turn-2"] {
            lab.create(&pod(name, 2, "spin 100000 5"))?;
        }
        let one = rounds_a_second(lab, "turn-1")? / alone;
        let other = rounds_a_second(lab, "turn-2")? / alone;
        Ok(figure(format!("{one:.2} and {other:.2} of the throughput alone")))
    });
}
