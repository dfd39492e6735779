-- The name in a key "<root><letter>:<name>"; the root is as long as in the key of the records.
local name_start = #records - #'records' + 3
local function name_of(key) return key:sub(name_start) end
