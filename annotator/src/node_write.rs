//! What one job writes of its node: annotations of the Node, in one patch.

use api::share::NodeShare;
use placement::names::{HOT_VALUE, Names};
use placement::publish::WriteReason;
use placement::reading::{HotValueNote, Reading, ReadingCodec};
use placement::units::MetricName;

/// A value of the annotation with the share of the GPUs; `None` removes it.
pub(crate) type ShareAnnotation = Option<NodeShare>;

/// The readings of one node to write.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ReadingsWrite {
    pub(crate) reason: WriteReason,
    /// The last reading of each metric, with its own time.
    pub(crate) readings: Vec<(MetricName, Reading)>,
    /// `None` if unknown.
    pub(crate) hot_value: Option<HotValueNote>,
}

/// All that one job writes of its node. The default is nothing.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct NodeWrite {
    pub(crate) readings: Option<ReadingsWrite>,
    /// The share of the GPUs; `None` if it is not written.
    pub(crate) share: Option<ShareAnnotation>,
}

impl NodeWrite {
    /// The value of the label `reason` in metrics; `None` if there is nothing to write.
    pub(crate) fn reason(&self) -> Option<&'static str> {
        let of_readings = self.readings.as_ref().map(|write| write.reason.label());
        of_readings.or_else(|| self.share.is_some().then_some("share"))
    }

    /// The annotations to set (`Some`) or remove.
    pub(crate) fn annotations(
        &self,
        names: &Names,
        codec: &ReadingCodec,
    ) -> Vec<(String, Option<String>)> {
        let mut changes = Vec::new();
        if let Some(write) = &self.readings {
            for (metric, reading) in &write.readings {
                changes.push((metric.to_string(), Some(codec.encode(reading))));
            }
            // crane's readers use a hot value for 5 minutes, so every patch with readings contains it, 0 or not.
            if let Some(note) = write.hot_value {
                let text = codec.encode_count(note.value as u64, note.at);
                changes.push((HOT_VALUE.to_owned(), Some(text)));
            }
        }
        if let Some(share) = &self.share {
            changes.push((names.share(), share.as_ref().map(NodeShare::to_json)));
        }
        changes
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use placement::units::Ratio;

    use super::*;

    fn readings() -> ReadingsWrite {
        let at = Timestamp::from_second(1_795_165_200).unwrap();
        ReadingsWrite {
            reason: WriteReason::Crossed,
            readings: vec![("cpu".into(), Reading::new(Ratio::new(0.5).unwrap(), at))],
            hot_value: Some(HotValueNote { value: 2.0, at }),
        }
    }

    #[test]
    fn readings_hot_value_and_share_are_one_patch_for_the_reason_of_the_readings() {
        for (readings, share, reason, keys) in [
            (
                Some(readings()),
                Some(None),
                Some("crossed"),
                &["cpu", "node_hot_value", "plimsoll.dev/gpu-share"][..],
            ),
            (None, Some(None), Some("share"), &["plimsoll.dev/gpu-share"]),
            (None, None, None, &[]),
        ] {
            let write = NodeWrite { readings, share };
            let changes = write.annotations(&Names::default(), &ReadingCodec::default());
            let found: Vec<&str> = changes.iter().map(|(key, _)| key.as_str()).collect();
            assert_eq!((write.reason(), &found[..]), (reason, keys));
        }
    }
}
