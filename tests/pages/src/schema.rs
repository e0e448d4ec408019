//! Whether a JSON value is as a schema says: the part of JSON Schema (2020-12) that the generated schemas use.
//!
//! Crates that know all of it need others whose licence `deny.toml` does not allow. This one is stricter, too: a property that the schema does not
//! name is an error, and so is a keyword that is not known here.

use serde_json::{Map, Value};

/// Keywords without a meaning for the check.
const NOTES: [&str; 7] = ["$schema", "$id", "$defs", "title", "description", "default", "format"];

/// What differs first, with its path.
pub fn check(schema: &Value, value: &Value) -> Result<(), String> {
    meets(schema, schema, value, "$")
}

fn meets(root: &Value, schema: &Value, value: &Value, path: &str) -> Result<(), String> {
    let Value::Object(keywords) = schema else {
        return if *schema == Value::Bool(true) { Ok(()) } else { Err(format!("{path}: nothing is allowed here")) };
    };
    for (keyword, wanted) in keywords.iter().filter(|(keyword, _)| !NOTES.contains(&keyword.as_str())) {
        let is_met = match keyword.as_str() {
            "type" => one_or_many(wanted).any(|name| has_type(value, name)),
            "enum" => wanted.as_array().is_some_and(|values| values.contains(value)),
            "const" => wanted == value,
            "minimum" => value.as_f64().zip(wanted.as_f64()).is_none_or(|(value, least)| value >= least),
            "maximum" => value.as_f64().zip(wanted.as_f64()).is_none_or(|(value, most)| value <= most),
            "minItems" => length(value).zip(wanted.as_u64()).is_none_or(|(length, least)| length >= least),
            "maxItems" => length(value).zip(wanted.as_u64()).is_none_or(|(length, most)| length <= most),
            "uniqueItems" => {
                let items = value.as_array().map_or(&[][..], Vec::as_slice);
                items.iter().enumerate().all(|(at, item)| !items[..at].contains(item))
            }
            "required" => {
                let missing = one_or_many(wanted).find(|name| value.is_object() && value.get(name).is_none());
                missing.map_or(Ok(true), |name| Err(format!("{path}: {name} is missing")))?
            }
            "$ref" => {
                let target = wanted.as_str().and_then(|name| root.pointer(name.strip_prefix('#')?));
                meets(root, target.ok_or_else(|| format!("{path}: no {wanted}"))?, value, path).map(|()| true)?
            }
            "anyOf" | "oneOf" => {
                let tries: Vec<_> = alternatives(wanted).map(|way| meets(root, way, value, path)).collect();
                if tries.iter().all(Result::is_err) {
                    return Err(tries.into_iter().filter_map(Result::err).collect::<Vec<_>>().join("; or "));
                }
                true
            }
            "allOf" => alternatives(wanted).try_for_each(|part| meets(root, part, value, path)).map(|()| true)?,
            "items" => {
                let mut items = value.as_array().into_iter().flatten().enumerate();
                items.try_for_each(|(at, item)| meets(root, wanted, item, &format!("{path}[{at}]")))?;
                true
            }
            "properties" | "patternProperties" | "additionalProperties" => {
                value.as_object().map_or(Ok(()), |object| properties(root, keywords, object, path))?;
                true
            }
            _ => return Err(format!("{path}: the keyword {keyword} is not known")),
        };
        if !is_met {
            return Err(format!("{path}: {value} does not meet {keyword} {wanted}"));
        }
    }
    Ok(())
}

fn properties(
    root: &Value,
    keywords: &Map<String, Value>,
    object: &Map<String, Value>,
    path: &str,
) -> Result<(), String> {
    // Other parts of the schema may name more.
    let is_part = ["anyOf", "oneOf", "allOf", "$ref"].iter().any(|keyword| keywords.contains_key(*keyword));
    for (name, value) in object {
        let named = keywords.get("properties").and_then(|properties| properties.get(name));
        // Keys of maps by number are the only pattern.
        let is_number = name.bytes().all(|byte| byte.is_ascii_digit());
        let patterns = keywords.get("patternProperties").filter(|_| is_number);
        let numbered = patterns.and_then(|patterns| patterns.get(r"^\d+$"));
        match named.or(numbered).or_else(|| keywords.get("additionalProperties")) {
            Some(schema) => meets(root, schema, value, &format!("{path}.{name}"))?,
            None if is_part => {}
            None => return Err(format!("{path}: the schema has no {name}")),
        }
    }
    Ok(())
}

fn one_or_many(value: &Value) -> impl Iterator<Item = &str> {
    value.as_str().into_iter().chain(value.as_array().into_iter().flatten().filter_map(Value::as_str))
}

fn alternatives(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn length(value: &Value) -> Option<u64> {
    value.as_array().map(|items| items.len() as u64)
}

fn has_type(value: &Value, name: &str) -> bool {
    match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::check;

    #[test]
    fn a_value_that_differs_is_named_with_its_path() {
        let schema = json!({
            "$defs": {"Item": {
                "type": "object",
                "properties": {"port": {"type": "integer", "minimum": 0, "maximum": 65535}, "name": {"type": ["string", "null"]}},
                "required": ["port"],
            }},
            "type": "object",
            "properties": {"items": {"type": "array", "items": {"$ref": "#/$defs/Item"}}},
        });
        assert_eq!(check(&schema, &json!({"items": [{"port": 80, "name": null}, {"port": 1}]})), Ok(()));
        for (value, expected) in [
            (json!({"items": [{"name": "a"}]}), "$.items[0]: port is missing"),
            (json!({"items": [{"port": 70_000}]}), "$.items[0].port: 70000 does not meet maximum 65535"),
            (json!({"items": [{"port": 1}, {"port": "x"}]}), "$.items[1].port: \"x\" does not meet type \"integer\""),
            (json!({"items": [{"port": 1, "size": 2}]}), "$.items[0]: the schema has no size"),
        ] {
            assert_eq!(check(&schema, &value), Err(expected.to_owned()));
        }
    }

    #[test]
    fn one_of_several_ways_is_enough() {
        let schema = json!({"anyOf": [{"const": "on"}, {"type": "null"}]});
        assert!(check(&schema, &json!("on")).is_ok() && check(&schema, &json!(null)).is_ok());
        let error = check(&schema, &json!("off")).expect_err("neither");
        assert!(error.contains("const") && error.contains("; or "), "{error}");
        assert!(check(&json!({"pattern": "x"}), &json!("x")).is_err(), "a keyword that is not known");
    }
}
