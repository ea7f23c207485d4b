/* A libnvidia-ml.so.1 that, like the real one, calls its own functions by name, so that whatever interposes gets those calls too.
 * Three GPUs; the second has the UUID in $SELF_CALLING_UUID. Indices out of range are refused by asking for the count. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void *device;
int nvmlDeviceGetCount_v2(unsigned *);
int nvmlDeviceGetHandleByIndex_v2(unsigned, device *);
int nvmlDeviceGetMemoryInfo_v2(device, unsigned long long *);

int nvmlInit_v2(void) { return 0; }

int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = 3;
    return 0;
}

int nvmlDeviceGetCount(unsigned *count) { return nvmlDeviceGetCount_v2(count); }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, device *found) {
    unsigned count;
    int status = nvmlDeviceGetCount_v2(&count);
    if (status || index >= count) return 2;
    *found = (device)(unsigned long)(index + 1);
    return 0;
}

int nvmlDeviceGetHandleByIndex(unsigned index, device *found) { return nvmlDeviceGetHandleByIndex_v2(index, found); }

int nvmlDeviceGetIndex(device gpu, unsigned *index) {
    unsigned count;
    nvmlDeviceGetCount_v2(&count);
    for (unsigned i = 0; i < count; i++) {
        device found;
        if (!nvmlDeviceGetHandleByIndex_v2(i, &found) && found == gpu) {
            *index = i;
            return 0;
        }
    }
    return 6;
}

int nvmlDeviceGetUUID(device gpu, char *text, unsigned length) {
    unsigned index;
    int status = nvmlDeviceGetIndex(gpu, &index);
    if (status) return status;
    snprintf(text, length, "%s", index == 1 ? getenv("SELF_CALLING_UUID") : "GPU-00000000-0000-0000-0000-000000000000");
    return 0;
}

int nvmlDeviceGetMemoryInfo_v2(device gpu, unsigned long long *info) {
    (void)gpu;
    memset(info + 1, 0, 32);
    info[1] = 1ull << 40;
    return 0;
}

int nvmlDeviceGetMemoryInfo(device gpu, unsigned long long *info) {
    unsigned long long newer[5] = {0x2000028};
    int status = nvmlDeviceGetMemoryInfo_v2(gpu, newer);
    info[0] = newer[1];
    info[1] = newer[3];
    info[2] = newer[4];
    return status;
}
