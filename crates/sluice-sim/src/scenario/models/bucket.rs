//! A token bucket, as a rented cloud disk.

use serde::Deserialize;
use sluice_sched::params::{ParamError, ParamTable, Parameter, Range, read};
use sluice_sched::scheduler::DeviceClass;
use sluice_sched::{Bytes, Iops};

use super::{Derived, ModelKind, parameter, ranged};
use crate::devices::bucket::TokenBucket;

const PARAMETERS: &[Parameter] = &[
    ranged("rate", "a rate of requests", Range::Requests(1, 1_000_000_000_000), "\"3000 iops\"", "Tokens per second"),
    ranged("burst", "number", Range::Number(1, 1_000_000_000), "3000", "Maximum number of tokens"),
    parameter("size", "a size", "\"1TiB\"", "Size of the device, which its VMs share"),
];

pub(super) const KINDS: &[ModelKind] = &[ModelKind {
    name: "token-bucket",
    summary: "Requests complete immediately while there are tokens, then at a constant rate: a rented cloud disk",
    device_class: DeviceClass::Disk,
    parameters: &[PARAMETERS],
    derive,
    build: |table, _, _| {
        derive(table)?;
        let bucket: Bucket = read(PARAMETERS, table)?;
        Ok(Box::new(TokenBucket::new(bucket.rate, bucket.burst)))
    },
}];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Bucket {
    rate: Iops,
    burst: u32,
    size: Bytes,
}

/// Maximum time to fill a bucket: a longer one exceeds the range of nanoseconds.
const FILL_SECONDS_MAX: f64 = 1e9;

fn derive(table: &ParamTable) -> Result<Derived, ParamError> {
    let bucket: Bucket = read(PARAMETERS, table)?;
    if f64::from(bucket.burst) / bucket.rate.as_f64() > FILL_SECONDS_MAX {
        let (burst, rate) = (bucket.burst, bucket.rate);
        let wrong =
            format!("a bucket of {burst} tokens takes more than 30 years to fill at {rate}; lower burst or raise rate");
        return Err(ParamError(wrong));
    }
    let most = (bucket.rate.as_f64(), "any requests, once its tokens are used up");
    Ok(Derived { span: bucket.size.0, most, facts: Vec::new(), rotational: false })
}
