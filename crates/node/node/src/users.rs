//! The names of this machine's own users.

use std::fs;

/// `/etc/passwd`.
pub struct UserNames(String);

impl UserNames {
    /// The users now; nobody has a name if the file cannot be read.
    #[must_use]
    pub fn read() -> Self {
        Self(fs::read_to_string("/etc/passwd").unwrap_or_default())
    }

    /// The number where there is no name: other services may know one.
    #[must_use]
    pub fn name(&self, uid: u32) -> String {
        let line = |line: &str| {
            let mut fields = line.split(':');
            let (name, id) = (fields.next()?, fields.nth(1)?);
            (id.parse() == Ok(uid)).then(|| name.to_owned())
        };
        self.0.lines().find_map(line).unwrap_or_else(|| uid.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_have_names_or_numbers() {
        let text = "root:x:0:0:root:/root:/bin/sh\nstu1:x:1001:1001::/home/stu1:/bin/sh\nbroken\n";
        let users = UserNames(text.to_owned());
        assert_eq!([users.name(0), users.name(1001), users.name(7)], ["root", "stu1", "7"]);
    }
}
